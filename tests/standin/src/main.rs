//! anebake, with stand-ins for the classes of Core ML.

mod answers;

use std::process::ExitCode;

fn main() -> ExitCode {
    anebake::commands::main()
}
