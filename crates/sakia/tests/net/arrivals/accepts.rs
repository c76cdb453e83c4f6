//! Connections that come to a listener.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use proptest::prelude::*;
use sakia::net::TcpListener;
use sakia_driver::Policy;

use super::receives::{Object, run, steps};
use super::{check, on_backends};

on_backends! {
    connections_come_in_order
}

struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    /// The clients, and their addresses.
    clients: RefCell<Vec<(std::net::TcpStream, SocketAddr)>>,
}

impl Object for Listener {
    type Method = ();

    fn most(_: &()) -> usize {
        1
    }

    fn send(&self, _: usize) -> bool {
        let client = std::net::TcpStream::connect(self.address).unwrap();
        let address = client.local_addr().unwrap();
        self.clients.borrow_mut().push((client, address));
        true
    }

    async fn receive(self: Rc<Self>, (): ()) -> Vec<usize> {
        let (_, peer) = self.listener.accept().await.unwrap();
        let clients = self.clients.borrow();
        let number = clients.iter().position(|(_, address)| *address == peer);
        vec![number.expect("a client")]
    }
}

fn connections_come_in_order(policy: Policy) {
    check(policy, steps(Just(())), |steps| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        run(Listener { listener, address, clients: RefCell::default() }, steps, ()).await;
    });
}
