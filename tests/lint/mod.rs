//! The rules of `lint`: each on something that trips it and something that does not, the command, packages that other
//! people's habits make, and our own bakes.

mod command;
mod foreign;
mod rules;
