//! Tickets as numbers, and descriptors for messages: what other languages need of a loop.

use sakia_driver::{CURRENT_POSITION, ControlMessages, FileHandle, Request, Ticket, Wait};

use super::{next, on_both, perform};

/// A number names its own request, while that is under way, and no other number names one.
#[test]
fn a_number_cancels_its_request_alone() {
    on_both(|ring| {
        let (reader, _writer) = std::io::pipe().unwrap();
        let reader = FileHandle::new(reader);
        let read = || Request::read(&reader, vec![0; 8].into(), CURRENT_POSITION);
        let [one, other] = [1, 2].map(|token| ring.submit(read(), token).unwrap());
        assert_ne!((one.to_bits(), other.to_bits()), (0, 0));
        assert_ne!(one.to_bits(), other.to_bits());
        ring.wait(Wait::Poll).unwrap();
        let next_generation = other.to_bits() + (1 << 32);
        for bits in [0, 1 << 63, u64::MAX, next_generation] {
            ring.cancel(Ticket::from_bits(bits));
        }
        ring.cancel(Ticket::from_bits(one.to_bits()));
        let outcome = next(ring);
        assert_eq!((outcome.token, ring.under_way()), (1, 1));
        assert_eq!(outcome.result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        // Used up.
        ring.cancel(Ticket::from_bits(one.to_bits()));
        ring.wait(Wait::Poll).unwrap();
        assert!(ring.take().is_none());
        ring.cancel(Ticket::from_bits(other.to_bits()));
        assert_eq!(next(ring).token, 2);
    });
}

#[test]
fn a_closed_file_has_no_descriptor_to_send() {
    on_both(|ring| {
        let file = FileHandle::new(std::fs::File::open("Cargo.toml").unwrap());
        assert!(ring.add_descriptor(ControlMessages::new(), &file).is_ok());
        perform(ring, Request::Close { file: file.clone() }).result.unwrap();
        let error = ring.add_descriptor(ControlMessages::new(), &file).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    });
}
