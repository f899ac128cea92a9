"""What limits a measured run, whether it is normal, and which flag would change it."""
