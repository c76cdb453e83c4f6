//! `serve` against a model that counts: who is served, waits or is refused after each step, and all counts at
//! the end.
//!
//! Random clients connect, order their handlers to end in one way or another, and leave; serving stops at
//! some point. Left out: budgets, accepts that fail and listeners that were borrowed, which have tests of
//! their own.

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use sakia::io::BufResultExt;
use sakia::net::{ServeError, ServeOptions, Served, TcpListener, TcpStream, serve};
use sakia::time::timeout;
use sakia::{CancellationToken, Runtime, spawn, yield_now};
use sakia_driver::Policy;
use sakia_testkit::random::{Random, programs};
use sakia_testkit::settings::patience;

use crate::support::runtime;

/// How a handler ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Well,
    Fails,
    Panics,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Counts as the first step only.
    Options {
        max: usize,
        refuses: bool,
        cancels: bool,
    },
    Connect,
    /// Ends the handler of a client that is served, by its number modulo those there are.
    End {
        number: usize,
        end: End,
    },
    /// A client closes its connection, served or not.
    Leave {
        number: usize,
    },
    Stop,
}

fn program(random: &mut Random) -> Vec<Step> {
    let (refuses, cancels) = (random.percent(40), random.percent(40));
    let mut steps = vec![Step::Options { max: 1 + random.below(4) as usize, refuses, cancels }];
    for _ in 0..1 + random.below(24) {
        let number = random.below(64) as usize;
        steps.push(match random.below(24) {
            0..=10 => Step::Connect,
            11..=17 => Step::End {
                number,
                end: random.one_of(&[End::Well, End::Well, End::Fails, End::Panics]),
            },
            18..=22 => Step::Leave { number },
            _ => Step::Stop,
        });
    }
    steps
}

/// Says that it serves, and ends as the client orders.
async fn handle(mut stream: TcpStream) -> Result<(), &'static str> {
    // A client that has left ends it, too.
    let _ = stream.write_all("s").await.value();
    match stream.recv().await.as_deref() {
        Ok(b"f") => Err("ordered"),
        // Not `panic!`, whose hook would print it.
        Ok(b"p") => resume_unwind(Box::new("ordered")),
        _ => Ok(()),
    }
}

/// A client that has connected.
struct Client {
    /// `None` once it has left.
    stream: Option<TcpStream>,
}

impl Client {
    /// The next byte that comes, or `None` at the end of the connection.
    async fn hear(&mut self) -> Option<u8> {
        let stream = self.stream.as_mut().expect("it has not left");
        let heard = timeout(patience(), stream.recv()).await.expect("nothing comes");
        heard.ok().and_then(|bytes| bytes.first().copied())
    }
}

/// The server, and the model's view of it.
struct Scene {
    address: std::net::SocketAddr,
    max: usize,
    refuses: bool,
    cancels: bool,
    token: CancellationToken,
    is_stopped: bool,
    served: Vec<Client>,
    waiting: Vec<Client>,
    model: Served,
}

/// Lets the server see what has come. A packet on the loopback interface is there when its send returns.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

impl Scene {
    /// Serves those who wait, as long as there is room.
    async fn admit(&mut self) -> Result<(), String> {
        while self.served.len() < self.max && !self.waiting.is_empty() && !self.is_stopped {
            let mut client = self.waiting.remove(0);
            self.model.accepted += 1;
            if client.stream.is_none() {
                self.model.completed += 1;
                settle().await;
            } else {
                let heard = client.hear().await;
                if heard != Some(b's') {
                    return Err(format!("heard {heard:?}, and should be served"));
                }
                self.served.push(client);
            }
        }
        Ok(())
    }

    async fn expect_end(client: &mut Client, who: &str) -> Result<(), String> {
        match client.hear().await {
            None => Ok(()),
            heard => Err(format!("a client that {who} hears {heard:?}")),
        }
    }

    async fn connect(&mut self) -> Result<(), String> {
        let stream = TcpStream::connect(self.address).await;
        if self.is_stopped {
            return stream.map_or(Ok(()), |_| Err("connected after the stop".into()));
        }
        let mut client = Client { stream: Some(stream.map_err(|error| error.to_string())?) };
        if self.refuses && self.served.len() == self.max {
            self.model.refused += 1;
            return Self::expect_end(&mut client, "is refused").await;
        }
        self.waiting.push(client);
        self.admit().await
    }

    async fn end(&mut self, number: usize, end: End) -> Result<(), String> {
        if self.served.is_empty() {
            return Ok(());
        }
        let mut client = self.served.remove(number % self.served.len());
        let (order, count) = match end {
            End::Well => ("w", &mut self.model.completed),
            End::Fails => ("f", &mut self.model.failed),
            End::Panics => ("p", &mut self.model.panicked),
        };
        *count += 1;
        let stream = client.stream.as_mut().expect("it has not left");
        stream.write_all(order).await.value().map_err(|error| error.to_string())?;
        Self::expect_end(&mut client, "was served").await?;
        settle().await;
        self.admit().await
    }

    async fn leave(&mut self, number: usize) -> Result<(), String> {
        let count = self.served.len() + self.waiting.len();
        if count == 0 {
            return Ok(());
        }
        let number = number % count;
        if number >= self.served.len() {
            self.waiting[number - self.served.len()].stream = None;
            settle().await;
            return Ok(());
        }
        drop(self.served.remove(number));
        self.model.completed += 1;
        settle().await;
        self.admit().await
    }

    async fn stop(&mut self) -> Result<(), String> {
        if self.is_stopped {
            return Ok(());
        }
        self.is_stopped = true;
        self.token.cancel();
        settle().await;
        for client in self.waiting.iter_mut().filter(|client| client.stream.is_some()) {
            Self::expect_end(client, "waits at the stop").await?;
        }
        if self.cancels {
            self.model.canceled += self.served.len() as u64;
            for mut client in self.served.drain(..) {
                Self::expect_end(&mut client, "is canceled").await?;
            }
        }
        Ok(())
    }

    async fn perform(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Options { .. } => Ok(()),
            Step::Connect => self.connect().await,
            Step::End { number, end } => self.end(number, end).await,
            Step::Leave { number } => self.leave(number).await,
            Step::Stop => self.stop().await,
        }
    }
}

async fn run(program: &[Step]) -> Result<(), String> {
    let Some(&Step::Options { max, refuses, cancels }) = program.first() else { return Ok(()) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let token = CancellationToken::new();
    let (stop, errors) = (token.clone(), Rc::new(Cell::new((0, 0))));
    let counted = Rc::clone(&errors);
    let (now, most) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(0)));
    let mut options = ServeOptions::new()
        .max_connections(max)
        .refuse_excess(refuses)
        .stop(async move { stop.canceled().await })
        .on_error(move |error| {
            let (failed, panicked) = counted.get();
            counted.set(match error {
                ServeError::Failed { .. } => (failed + 1, panicked),
                _ => (failed, panicked + 1),
            });
        });
    if cancels {
        options = options.deadline(Duration::ZERO);
    }
    let at_a_time = Rc::clone(&most);
    let server = spawn(serve(listener, options, move |stream, _| {
        let guard = Guard::new(&now);
        at_a_time.replace_with(|most| (*most).max(now.get()));
        async move {
            let result = handle(stream).await;
            drop(guard);
            result
        }
    }));
    let (served, waiting, model) = (Vec::new(), Vec::new(), Served::default());
    let is_stopped = false;
    let mut scene =
        Scene { address, max, refuses, cancels, token, is_stopped, served, waiting, model };
    for &step in program {
        scene.perform(step).await.map_err(|error| format!("{step:?}: {error}"))?;
    }
    scene.stop().await?;
    while !scene.served.is_empty() {
        scene.leave(0).await?;
    }
    let server = timeout(patience(), server).await.map_err(|_| "it does not end")?;
    let (is, model) = (server.unwrap().map_err(|error| error.to_string())?, scene.model);
    if is != model {
        return Err(format!("{is:?}, in the model {model:?}"));
    }
    let most = *most.borrow();
    if most > max || errors.get() != (model.failed, model.panicked) {
        return Err(format!("{most} at a time, errors {:?}", errors.get()));
    }
    Ok(())
}

/// Counts a handler from its start to its end.
struct Guard(Rc<Cell<usize>>);

impl Guard {
    fn new(now: &Rc<Cell<usize>>) -> Self {
        now.set(now.get() + 1);
        Self(Rc::clone(now))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn check(runtime: &Runtime) {
    programs(60, program, |program| runtime.block_on(run(program)).err());
}

#[test]
fn clients_are_served_by_count() {
    check(&Runtime::new().unwrap());
}

#[test]
fn clients_are_served_by_count_on_epoll() {
    check(&runtime(Policy::Poll));
}
