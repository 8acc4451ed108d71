"""What both worker services are made of: one event loop, one forward thread, one pure core (design, section 4)."""
