"""What marks the processes of a federation on this machine, in their environment. Imports nothing."""

KITS, PART = "COALFACE_KITS", "COALFACE_PART"
"""The folder of kits, and which part of the federation it is."""
