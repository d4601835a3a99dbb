//! The one-shot slices that stop a module which runs too long.
