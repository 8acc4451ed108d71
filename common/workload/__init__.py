"""What requests look like and when they come: shared by simulator and benchmark. Pure, seeded, no clock."""
