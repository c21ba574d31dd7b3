"""What the site shows that nobody writes by hand: tables, reference pages and pictures made from the code."""
