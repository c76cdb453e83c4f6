//! The attributes.

use std::io;

use sakia::{spawn_on, yield_now};

#[sakia::test]
async fn tests_may_return_nothing() {
    yield_now().await;
}

#[sakia::test]
async fn tests_may_return_results() -> io::Result<()> {
    yield_now().await;
    let none: io::Result<()> = Err(io::ErrorKind::NotFound.into());
    if none.is_ok() {
        none?;
    }
    Ok(())
}

const THREADS: usize = 2;

#[sakia::test(threads = THREADS + 1)]
async fn threads_are_as_asked_for() {
    spawn_on(2, async || ()).await.unwrap();
}

#[sakia::test]
async fn outputs_may_have_no_name() -> impl std::process::Termination {
    yield_now().await;
    std::process::ExitCode::SUCCESS
}

#[sakia::test]
#[should_panic = "a reason"]
async fn other_attributes_are_kept() {
    panic!("a reason");
}

/// A test calls this function, since it is not the `main` of the program.
#[sakia::main(threads = 2)]
async fn main() -> Result<u32, String> {
    let value = spawn_on(1, async || 1).await.map_err(|error| error.to_string())?;
    if value == 0 {
        return Err("zero".into());
    }
    Ok(value + 1)
}

#[test]
fn main_gives_its_result() {
    assert_eq!(main(), Ok(2));
}
