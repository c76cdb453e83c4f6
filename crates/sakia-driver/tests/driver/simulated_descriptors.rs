//! Descriptors of the simulated kernel, and real descriptors that it is given by mistake.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use sakia_driver::Driver;
use sakia_driver::sim::Sim;

use crate::support::{panic_of, pipe_ends};

#[test]
fn the_simulated_kernel_takes_none() {
    let driver = Driver::new(Sim::new(1));
    let message = panic_of(|| drop(driver.lend(Arc::new(pipe_ends().0))));
    assert!(message.contains("simulated"), "{message}");
}

#[test]
fn numbers_of_the_simulated_kernel_are_not_lent() {
    let sim = Sim::new(1);
    let kernel = sim.handle();
    let driver = Driver::new(sim);
    let fd = driver.adopt_simulated(kernel.pipe().0);
    assert!(fd.is_simulated());
    let message = panic_of(|| fd.as_fd().as_raw_fd());
    assert!(message.contains("simulated kernel"), "{message}");
}

#[test]
fn a_number_has_one_descriptor_however_large_it_is() {
    let driver = Driver::new(Sim::new(1));
    for raw in [0, 63, 64, 1000, (1 << 20) - 1, 1 << 20, i32::MAX] {
        let fd = driver.adopt_simulated(raw);
        let message = panic_of(|| drop(driver.adopt_simulated(raw)));
        assert!(message.contains(&format!("descriptor {raw} is in use")), "{message}");
        drop(fd);
        drop(driver.adopt_simulated(raw));
    }
}
