//! `serve`: limits, the end, and failures of handlers.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use sakia::net::{ServeError, ServeOptions, TcpListener, TcpStream, serve};
use sakia::{Budget, CancellationToken, JoinSet, Limits, Resource, spawn};

use crate::support::{assert_echoes, bytes, echo, on_each_backend, pair};

on_each_backend! {
    no_more_than_the_most_at_a_time
    who_waits_beyond_the_most_has_no_descriptor
    beyond_the_most_they_are_refused
    what_is_begun_is_finished
    what_does_not_end_is_canceled_at_the_deadline
    a_handler_that_fails_ends_its_own_connection
    a_listener_that_was_borrowed_stays_open
    dropping_it_cancels_the_handlers
    a_listener_that_fails_ends_it
    two_servers_share_a_budget
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Returns options by which the server ends when the token is canceled.
fn until<E>(token: &CancellationToken) -> ServeOptions<E> {
    let token = token.clone();
    ServeOptions::new().stop(async move { token.canceled().await })
}

/// Counts the handlers that run at a time.
#[derive(Clone, Default)]
struct Gauge {
    now: Rc<Cell<u32>>,
    most: Rc<Cell<u32>>,
}

impl Gauge {
    fn enter(&self) -> Inside {
        self.now.set(self.now.get() + 1);
        self.most.set(self.most.get().max(self.now.get()));
        Inside(self.clone())
    }
}

struct Inside(Gauge);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.now.set(self.0.now.get() - 1);
    }
}

async fn no_more_than_the_most_at_a_time() {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    let (token, gauge) = (CancellationToken::new(), Gauge::default());
    let inside = gauge.clone();
    let server = spawn(serve(listener, until(&token).max_connections(3), move |stream, _| {
        let inside = inside.enter();
        async move {
            let result = echo(stream).await;
            drop(inside);
            result
        }
    }));
    let mut clients = JoinSet::new();
    for number in 0..20 {
        clients.spawn(async move {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(bytes(number + 1)).await.0.unwrap();
            client.read_exact(vec![0; number + 1]).await.0.unwrap();
            client.close().await.unwrap();
        });
    }
    while let Some(outcome) = clients.join_next().await {
        outcome.unwrap();
    }
    token.cancel();
    let served = server.await.unwrap().unwrap();
    assert_eq!((served.accepted, served.completed, served.refused), (20, 20, 0));
    assert_eq!((gauge.now.get(), gauge.most.get()), (0, 3));
}

async fn who_waits_beyond_the_most_has_no_descriptor() {
    const WAITING: usize = 4;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = TcpListener::from_std(listener.try_clone().unwrap()).unwrap();
    let token = CancellationToken::new();
    let serving = spawn(serve(served, until(&token).max_connections(1), |stream, _| echo(stream)));
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all("there?").await.0.unwrap();
    assert_eq!(first.read_exact(vec![0; 6]).await.1, b"there?");
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        waiting.push(TcpStream::connect(address).await.unwrap());
    }
    sakia::time::sleep(Duration::from_millis(20)).await;
    // The waiting connections are still in the listener's queue.
    listener.set_nonblocking(true).unwrap();
    let taken: Vec<_> = (0..WAITING).map(|_| listener.accept().unwrap().1).collect();
    for client in &waiting {
        assert!(taken.contains(&client.local_addr().unwrap()));
    }
    token.cancel();
    drop(first);
    assert_eq!(serving.await.unwrap().unwrap().accepted, 1);
}

async fn beyond_the_most_they_are_refused() {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    let token = CancellationToken::new();
    let options = until(&token).max_connections(1).refuse_excess(true);
    let server = spawn(serve(listener, options, |stream, _| echo(stream)));
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all("a").await.0.unwrap();
    assert_eq!(&*first.recv().await.unwrap(), b"a");
    for _ in 0..5 {
        let mut excess = TcpStream::connect(address).await.unwrap();
        assert!(excess.recv().await.unwrap().is_empty());
    }
    first.write_all("b").await.0.unwrap();
    assert_eq!(&*first.recv().await.unwrap(), b"b");
    first.close().await.unwrap();
    // The server notices the end of a connection a little later.
    loop {
        let mut client = TcpStream::connect(address).await.unwrap();
        let is_sent = client.write_all("c").await.0.is_ok();
        if is_sent && client.recv().await.is_ok_and(|bytes| *bytes == *b"c") {
            break;
        }
    }
    token.cancel();
    let served = server.await.unwrap().unwrap();
    assert_eq!((served.accepted, served.completed), (2, 2));
    assert!(served.refused >= 5);
}

async fn what_is_begun_is_finished() {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    let token = CancellationToken::new();
    let server = spawn(serve(listener, until(&token), |stream, _| echo(stream)));
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all("before").await.0.unwrap();
    client.read_exact(vec![0; 6]).await.0.unwrap();
    token.cancel();
    // Connects until the listener is closed.
    while let Ok(late) = TcpStream::connect(address).await {
        drop(late);
    }
    client.write_all("after").await.0.unwrap();
    assert_eq!(client.read_exact(vec![0; 5]).await.1, b"after");
    assert!(!server.is_finished());
    drop(client);
    let served = server.await.unwrap().unwrap();
    assert_eq!((served.completed, served.canceled), (served.accepted, 0));
}

async fn what_does_not_end_is_canceled_at_the_deadline() {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    let token = CancellationToken::new();
    let options = until(&token).deadline(Duration::from_millis(1));
    let server = spawn(serve(listener, options, async |_stream: TcpStream, _| {
        pending::<()>().await;
        io::Result::Ok(())
    }));
    let mut clients =
        [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
    // A connected client need not be accepted yet.
    let (_, _) = pair().await;
    token.cancel();
    let served = server.await.unwrap().unwrap();
    assert_eq!(served.canceled, served.accepted);
    for client in &mut clients {
        // The connection was closed by the server, or reset with the listener in whose queue it waited.
        let ended = client.recv().await;
        assert!(ended.as_ref().map_or(true, |bytes| bytes.is_empty()), "{ended:?}");
    }
}

async fn a_handler_that_fails_ends_its_own_connection() {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    let token = CancellationToken::new();
    let (errors, seen) = async_channel::unbounded();
    let options = until(&token).on_error(move |error| errors.try_send(error).unwrap());
    let server = spawn(serve(listener, options, async |mut stream: TcpStream, _| {
        let bytes = stream.recv().await?;
        match &*bytes {
            b"fail" => Err(io::Error::other("as it was told")),
            b"panic" => panic!("as it was told"),
            _ => {
                stream.write_all(bytes).await.0?;
                echo(stream).await
            }
        }
    }));
    let mut other = TcpStream::connect(address).await.unwrap();
    other.write_all("x").await.0.unwrap();
    other.read_exact(vec![0; 1]).await.0.unwrap();
    for what in ["fail", "panic"] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(what).await.0.unwrap();
        assert!(client.recv().await.unwrap().is_empty());
        let error = seen.recv().await.unwrap();
        let peer = client.local_addr().unwrap();
        assert_eq!(error.peer(), Some(peer));
        let text = match &error {
            ServeError::Failed { .. } => "as it was told",
            _ => "the task panicked: as it was told",
        };
        assert_eq!(matches!(error, ServeError::Panicked { .. }), what == "panic");
        assert_eq!(error.to_string(), format!("connection from {peer}: {text}"));
        assert_echoes(address).await;
    }
    other.write_all("y").await.0.unwrap();
    assert_eq!(other.read_exact(vec![0; 1]).await.1, b"y");
    drop(other);
    token.cancel();
    let served = server.await.unwrap().unwrap();
    assert_eq!((served.accepted, served.completed), (5, 3));
    assert_eq!((served.failed, served.panicked, served.canceled), (1, 1, 0));
}

async fn a_listener_that_was_borrowed_stays_open() {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    let token = CancellationToken::new();
    token.cancel();
    let served = serve(&listener, until(&token), |stream, _| echo(stream)).await.unwrap();
    assert_eq!(served.accepted, 0);
    let client = TcpStream::connect(address).await.unwrap();
    assert_eq!(listener.accept().await.unwrap().1, client.local_addr().unwrap());
}

async fn dropping_it_cancels_the_handlers() {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    let server = spawn(serve(listener, ServeOptions::new(), |stream, _| echo(stream)));
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all("x").await.0.unwrap();
    client.read_exact(vec![0; 1]).await.0.unwrap();
    assert!(server.cancel().await.is_none());
    assert!(client.recv().await.unwrap().is_empty());
}

async fn a_listener_that_fails_ends_it() {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Read).unwrap();
    let failed = serve(listener, ServeOptions::new(), |stream, _| echo(stream)).await.unwrap_err();
    assert_eq!(failed.error.raw_os_error(), Some(22));
    assert_eq!(failed.error.addresses(), [address]);
    assert_eq!(failed.to_string(), format!("accept on {address}: Invalid argument (os error 22)"));
    assert_eq!(sakia::net::os_error(&io::Error::from(failed)), Some(22));
}

async fn two_servers_share_a_budget() {
    let token = CancellationToken::new();
    let budget = Budget::new(Limits::new().descriptors(2));
    let gauge = Gauge::default();
    let mut servers = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let listener = listener().await;
        addresses.push(listener.local_addr().unwrap());
        let options = until(&token).budget(budget.clone());
        let inside = gauge.clone();
        servers.push(spawn(serve(listener, options, move |stream, _| {
            let inside = inside.enter();
            async move {
                let result = echo(stream).await;
                drop(inside);
                result
            }
        })));
    }
    for address in addresses {
        let mut clients = JoinSet::new();
        for _ in 0..10 {
            clients.spawn(assert_echoes(address));
        }
        while let Some(outcome) = clients.join_next().await {
            outcome.unwrap();
        }
    }
    token.cancel();
    for server in servers {
        assert_eq!(server.await.unwrap().unwrap().completed, 10);
    }
    assert!(gauge.most.get() <= 2);
    assert!(budget.try_acquire(Resource::Descriptors, 2).is_some(), "all of it came back");
}
