"""What `agreement` consists of: the worth of every decoder with imitated drafts."""
