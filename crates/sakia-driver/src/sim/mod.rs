//! A kernel in memory.
