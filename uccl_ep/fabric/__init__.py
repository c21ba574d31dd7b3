"""Which network a group uses, over which NICs, and why: read, decided, explained. Start reading at choice.py."""
