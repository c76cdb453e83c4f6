//! Many drivers in one thread, which can register sixteen rings.

use crate::support::{drain, finish, pipe, sized, write_all};
use sakia_driver::{CURRENT_POSITION, Wait};

#[test]
fn forty_work_side_by_side() {
    for _ in 0..3 {
        let drivers: Vec<_> = (0..40).map(|_| sized(4, 16)).collect();
        let pipes: Vec<_> = drivers.iter().map(pipe).collect();
        let mut reads: Vec<_> = drivers
            .iter()
            .zip(&pipes)
            .map(|(driver, (fd, _))| driver.read(fd, vec![0; 1], CURRENT_POSITION))
            .collect();
        for driver in &drivers {
            driver.turn(Wait::Poll).unwrap();
        }
        for (number, (_, write)) in pipes.iter().enumerate() {
            write_all(write, &[number as u8]);
        }
        for (number, (driver, read)) in drivers.iter().zip(&mut reads).enumerate() {
            let (result, buf) = finish(driver, read);
            assert_eq!((result.unwrap(), buf[0]), (1, number as u8));
        }
        let registered = drivers.iter().filter(|driver| {
            let report = |uring: &sakia_driver::Uring| uring.ring().report().registered_fd;
            driver.with_backend(report).unwrap()
        });
        // The same in each round: the drivers of the round before have freed their places.
        assert_eq!(registered.count(), 16);
    }
}

#[test]
fn they_end_in_any_order() {
    let mut drivers: Vec<_> = (0..20).map(|_| sized(4, 16)).collect();
    while drivers.len() > 1 {
        let middle = drivers.len() / 2;
        drop(drivers.swap_remove(middle));
        for driver in &drivers {
            let mut nop = driver.nop();
            finish(driver, &mut nop).unwrap();
            drain(driver);
        }
    }
}
