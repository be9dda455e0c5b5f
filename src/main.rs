//! The program. All of it is in the library, so that other entry points run the same.

use std::process::ExitCode;

fn main() -> ExitCode {
    anebake::commands::main()
}
