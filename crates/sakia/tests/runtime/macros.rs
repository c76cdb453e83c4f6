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

/// A function of any name takes its arguments with it, by value and by reference, whatever their patterns.
#[sakia::main]
async fn sum((one, two): (u32, u32), more: &[u32], mut rest: Vec<u32>, _: u8) -> io::Result<u32> {
    yield_now().await;
    rest.push(one + two);
    if rest.len() > 100 {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Ok(more.iter().chain(&rest).sum())
}

#[sakia::main(threads = 2)]
async fn shown<T: ToString, const N: usize>(
    values: [T; N],
    end: impl AsRef<str>,
) -> impl AsRef<str> {
    yield_now().await;
    values.map(|value| value.to_string()).concat() + end.as_ref()
}

struct Counter(u32);

impl Counter {
    #[sakia::main]
    async fn add(&mut self, count: u32) -> &mut Self {
        yield_now().await;
        self.0 += count;
        self
    }

    #[sakia::main]
    async fn end(self) -> u32 {
        yield_now().await;
        let Self(count) = self;
        count
    }
}

#[test]
fn functions_take_arguments() {
    assert_eq!(sum((1, 2), &[3, 4], vec![5], 0).unwrap(), 15);
    assert_eq!(shown([1, 2], "!").as_ref(), "12!");
    let mut counter = Counter(1);
    counter.add(2).add(3);
    assert_eq!(counter.end(), 6);
}
