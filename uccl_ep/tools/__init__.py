"""Programs that stand on the library: nothing below imports them."""
