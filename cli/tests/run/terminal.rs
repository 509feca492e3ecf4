//! The terminal: a command reads it, Ctrl-C ends it, Ctrl-Z stops it.
