//! Tickets as numbers, and descriptors for messages: what other languages need of a loop.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use sakia_driver::{
    CURRENT_POSITION, ControlMessages, FileHandle, Loop, Outcome, Request, SocketAddress, Ticket,
    Value, Wait,
};

use super::{next, on_both, perform, value};

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
fn descriptors_are_sent_and_those_of_closed_files_refused() {
    on_both(|ring| {
        let (near, far) = UnixDatagram::pair().unwrap();
        let (near, far) =
            (FileHandle::new(OwnedFd::from(near)), FileHandle::new(OwnedFd::from(far)));
        let file = FileHandle::new(std::fs::File::open("Cargo.toml").unwrap());
        let message = |ring: &mut Loop| {
            let control = ControlMessages::of_request().file(&file).ip_tos(1);
            let request = Request::SendMessage {
                socket: (&near).into(),
                buffer: vec![1, 2].into(),
                address: Box::new(SocketAddress::UNNAMED),
                control: Box::new(control),
                flags: 0,
            };
            perform(ring, request)
        };
        assert_eq!(message(ring).result.unwrap(), 2);
        let (socket, buffer) = ((&far).into(), vec![0; 4].into());
        let receive = Request::ReceiveMessage { socket, buffer, control_bytes: 64, flags: 0 };
        let (_, Value::Message(received, _)) = value(ring, receive) else { panic!("a message") };
        // On any loop, and on any thread.
        let [copy] = <[FileHandle; 1]>::try_from(received.1.descriptors).unwrap();
        let bytes = perform(ring, Request::read(&copy, vec![0; 9].into(), 0)).into_vec().unwrap();
        assert_eq!(bytes, b"[package]");
        perform(ring, Request::Close { file: file.clone() }).result.unwrap();
        let refused = message(ring);
        assert_eq!(refused.result.as_ref().unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(refused.into_vec().unwrap(), [1, 2]);
    });
}

/// Requests and outcomes may go to other threads.
#[test]
fn requests_are_values_for_any_thread() {
    fn check<T: Send>() {}
    check::<(Request, Outcome)>();
}
