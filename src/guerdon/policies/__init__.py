"""What acts: control policies for states and pixels, scripted experts."""
