//! Every operation on every kind of descriptor answers as the plain system call that it replaces, on each
//! backend.
#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod answer;
mod kinds;
mod operations;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::time::Duration;

use sakia_driver::{Arena, Auto, Bypass, Driver, Fd, FixedBuf, Handle, Policy, Rules};
use sakia_ring::Ring;

use answer::{Answer, ask, handle_signal, plainly};

thread_local! {
    static HANDLE: RefCell<Option<(Handle, Arena)>> = const { RefCell::new(None) };
}

fn block() -> FixedBuf {
    HANDLE.with_borrow(|it| it.as_ref().unwrap().1.block().expect("a block is free"))
}

fn adopt(fd: OwnedFd) -> Fd {
    DRIVER.with_borrow(|it| it.as_ref().unwrap().adopt(fd))
}

thread_local! {
    static DRIVER: RefCell<Option<&'static Driver>> = const { RefCell::new(None) };
}

fn run(policy: Policy, bypass: Bypass, name: &str) {
    handle_signal();
    let only_kind = std::env::var("TABLE_KIND").ok();
    let only_op = std::env::var("TABLE_OP").ok();
    let operations = operations::all();
    let (mut count, mut bad) = (0, 0);
    for kind in kinds::KINDS {
        if only_kind.as_ref().is_some_and(|only| !kind.name.contains(&**only)) {
            continue;
        }
        let driver: &'static Driver =
            Box::leak(Box::new(Driver::new(Auto::new(policy, Ring::builder()).unwrap().0)));
        driver.set_bypass(bypass.clone());
        let arena = driver.register_arena(8, 4096).unwrap();
        HANDLE.set(Some((driver.handle().clone(), arena)));
        DRIVER.set(Some(driver));
        for operation in &operations {
            if only_op.as_ref().is_some_and(|only| !operation.name.contains(&**only)) {
                continue;
            }
            let plain = match (kind.make)() {
                Ok(subject) => subject,
                Err(errno) => {
                    eprintln!("no {}: {errno:?}", kind.name);
                    break;
                }
            };
            use std::os::fd::AsFd;
            let call = &operation.plain;
            if kind.name.contains("non-blocking") {
                rustix::io::ioctl_fionbio(&plain.fd, false).unwrap()
            }
            let expected = [(); 2].map(|()| plainly(&|| call(plain.fd.as_fd())));
            drop(plain);
            let subject = (kind.make)().unwrap();
            let copy = rustix::io::fcntl_dupfd_cloexec(&subject.fd, 0).unwrap();
            let fd = driver.adopt(copy);
            for (round, expected) in expected.into_iter().enumerate() {
                let got = ask(
                    driver,
                    (operation.driven)(driver.handle(), &fd),
                    expected == Answer::Waits,
                    Duration::from_millis(300),
                );
                count += 1;
                if got != expected {
                    bad += 1;
                    if format!("{got:?}").contains("dropped") {
                        println!("{name}: {} {} hangs", kind.name, operation.name);
                        std::process::exit(1)
                    }
                    println!(
                        "{name}: {}: {} #{round}: {expected:?} expected, {got:?}",
                        kind.name, operation.name
                    );
                }
            }
            drop(fd);
            driver.turn(sakia_driver::Wait::Poll).unwrap();
        }
        HANDLE.set(None);
        DRIVER.set(None);
    }
    println!("{name}: {count} cells, {bad} differ");
}

#[test]
fn on_the_ring() {
    run(Policy::Uring, Bypass::Never, "ring");
}

#[test]
fn on_the_ring_rules() {
    run(Policy::Uring, Bypass::Rules(Rules::default()), "ring+");
}

#[test]
fn on_epoll() {
    run(Policy::Poll, Bypass::Never, "poll");
}

#[test]
fn on_epoll_rules() {
    run(Policy::Poll, Bypass::Rules(Rules::default()), "poll+");
}
