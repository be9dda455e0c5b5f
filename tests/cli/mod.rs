//! The program as its users run it.

mod convert;
mod mistakes;
