//! A limit of `sakia cp` with one small file: the standard library's copy on a second thread, since `sakia`
//! hears signals on the first. The rest of a program's time is the price of its size, and of what it finds
//! out before it copies.
//!
//! ```text
//! cargo build --release -p sakia-cli --bin sakia --example one_file
//! sakia bench copytree --help    # how copies are compared
//! ```

use std::process::ExitCode;
use std::{env, fs, thread};

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: one_file FROM TO");
        return ExitCode::from(2);
    };
    match thread::spawn(move || fs::copy(from, to)).join() {
        Ok(Ok(_)) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("one_file: {error}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}
