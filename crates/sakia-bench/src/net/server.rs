//! The common code of servers of all variants: the connection to the load.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, anyhow, bail, ensure};
use sakia::Runtime;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::load::Work;
use super::{BEGIN, END, Order, load};
use crate::cell::{self, Counters, Done, Measured, Outcome, Spec};
use crate::engine::{self, Engine};
use crate::measure::Meter;
use crate::named::Named;
use crate::run::Launcher;

/// The input of a run of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) order: Order,
    /// Bytes of memory that a server receives into, if it has its own.
    pub(crate) block_bytes: usize,
    /// How the load is started; `None`: as a thread of this process, for tests.
    pub(crate) load: Option<Launcher>,
}

/// Runs a variant once, at the place of its task.
///
/// # Errors
/// See [`cell::run_cell`].
pub(crate) fn run_cell<V: Named>(
    spec: &Spec,
    work: impl FnOnce(V, Task, &mut Meter) -> anyhow::Result<Done>,
) -> anyhow::Result<Outcome> {
    let variant: V = spec.variant()?;
    let task: Task = spec.task()?;
    if task.load.is_some() {
        task.order.place.enter()?;
    }
    cell::measure(|meter| work(variant, task, meter))
}

/// The load of a server.
pub(crate) struct Load {
    /// The address on which it waits for the control connection.
    pub(crate) control: SocketAddr,
    runner: Runner,
}

/// The process or thread that generates the load.
enum Runner {
    Process(Child, BufReader<ChildStdout>),
    Thread(JoinHandle<anyhow::Result<load::Report>>),
}

impl Load {
    /// Starts it: in a separate process, or for tests in a thread.
    pub(crate) fn start(task: &Task) -> anyhow::Result<Self> {
        let Task { order, load, .. } = task;
        let Some(launcher) = load else { return Self::start_thread(order.clone()) };
        let spec = Spec { experiment: LOAD.into(), variant: LOAD.into(), input: json!(order) };
        let spec = serde_json::to_string(&spec).context("json")?;
        let mut command = Command::new(&launcher.program);
        command.args(&launcher.arguments).arg(spec);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child =
            spawned.with_context(|| format!("cannot run {}", launcher.program.display()))?;
        let mut out = BufReader::new(child.stdout.take().context("the load's output")?);
        let mut line = String::new();
        out.read_line(&mut line).context("the load's output")?;
        let Ok(control) = line.trim().parse() else {
            let status = child.wait().context("the load")?;
            bail!("the load ended early: {status}");
        };
        Ok(Self { control, runner: Runner::Process(child, out) })
    }

    fn start_thread(order: Order) -> anyhow::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let announce = move |address| sender.send(address).map_err(|_| anyhow!("no receiver"));
        let thread = thread::spawn(move || load::run(&order, announce));
        let control = receiver.recv().context("the load ended early")?;
        Ok(Self { control, runner: Runner::Thread(thread) })
    }

    /// Waits for its end. Returns its sum.
    fn finish(self) -> anyhow::Result<u64> {
        match self.runner {
            Runner::Thread(thread) => {
                let report = thread.join().map_err(|_| anyhow!("the load panicked"))?;
                Ok(report?.sum)
            }
            Runner::Process(mut child, mut out) => {
                let mut text = String::new();
                out.read_to_string(&mut text).context("the load's output")?;
                let status = child.wait().context("the load")?;
                ensure!(status.success(), "the load: {status}");
                match serde_json::from_str(&text).context("the load's report")? {
                    Outcome::Measured(Measured { sum, .. }) => Ok(sum),
                    Outcome::Unavailable(reason) => bail!("the load: {reason}"),
                }
            }
        }
    }
}

/// The load's name, in place of those of experiments and variants.
pub(crate) const LOAD: &str = "load";

/// Runs the load that a spec describes, in this process.
pub(crate) fn run_load(spec: &Spec, meter: &mut Meter) -> anyhow::Result<Done> {
    let order: Order = spec.task()?;
    let announce = |address: SocketAddr| {
        let mut out = io::stdout().lock();
        writeln!(out, "{address}").and_then(|()| out.flush()).context("standard output")
    };
    let sum = load::run(&order, announce)?.sum;
    meter.note_threads();
    Ok(Done { sum, counters: Counters::new() })
}

/// Returns the result of a server's run: for messages the sum that the load computed, for a stream the sum of
/// the bytes served.
pub(crate) fn done(
    load: Load,
    order: &Order,
    served: u64,
    counters: Counters,
) -> anyhow::Result<Done> {
    let of_load = load.finish()?;
    let sum = match order.work {
        Work::Stream(_) | Work::Sources(_) => served,
        _ => of_load,
    };
    Ok(Done { sum, counters })
}

/// Serves connections by plain calls: a thread for each, by `serve`, whose results are added up.
pub(crate) fn serve_blocking(
    task: &Task,
    meter: &mut Meter,
    serve: impl Fn(TcpStream) -> io::Result<u64> + Clone + Send + 'static,
) -> anyhow::Result<Done> {
    let (order, load) = (&task.order, Load::start(task)?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen")?;
    order.place.tell(&listener)?;
    let control = TcpStream::connect(load.control).context("control")?;
    let port = listener.local_addr().context("listen")?.port();
    (&control).write_all(&port.to_be_bytes()).context("control")?;
    let connections = order.work.connections();
    let acceptor = thread::spawn(move || {
        let accept = |_| {
            let (stream, _) = listener.accept()?;
            let serve = serve.clone();
            io::Result::Ok(thread::spawn(move || serve(stream)))
        };
        (0..connections).map(accept).collect::<io::Result<Vec<_>>>()
    });
    let hear = |word: u8| hear_blocking(&control, word);
    let say = |word: u8| (&control).write_all(&[word]).context("control");
    hear(BEGIN)?;
    let threads =
        acceptor.join().map_err(|_| anyhow!("the acceptor panicked"))?.context("accept")?;
    meter.note_threads();
    meter.restart()?;
    say(BEGIN)?;
    hear(END)?;
    let join = || {
        threads.into_iter().try_fold(0u64, |sum, thread| {
            let served = thread.join().map_err(|_| anyhow!("a thread panicked"))?;
            anyhow::Ok(sum.wrapping_add(served.context("a connection")?))
        })
    };
    let sum = match order.work {
        // The load is done with it, but its last bytes may still be in flight.
        Work::Stream(_) | Work::Sources(_) => {
            let sum = join()?;
            meter.end()?;
            say(END)?;
            sum
        }
        _ => {
            meter.end()?;
            say(END)?;
            join()?
        }
    };
    done(load, order, sum, Counters::new())
}

/// Waits for a word from the load.
pub(crate) fn hear_blocking(mut control: &TcpStream, word: u8) -> anyhow::Result<()> {
    let mut heard = [0];
    control.read_exact(&mut heard).context("the load ended early")?;
    ensure!(heard == [word], "the load said {heard:?}");
    Ok(())
}

/// Serves connections on a runtime: a task for each, by `serve`, whose results are added up.
pub(crate) fn through_runtime<F>(
    task: &Task,
    meter: &mut Meter,
    engine: Engine,
    serve: impl Fn(sakia::net::TcpStream) -> F + 'static,
) -> anyhow::Result<Done>
where
    F: Future<Output = io::Result<u64>> + 'static,
{
    let (order, load) = (&task.order, Load::start(task)?);
    let runtime = engine.start()?;
    let (sum, counters) = runtime.block_on(on_runtime(&runtime, &load, order, meter, serve))?;
    drop(runtime);
    done(load, order, sum, counters)
}

async fn on_runtime<F>(
    runtime: &Runtime,
    load: &Load,
    order: &Order,
    meter: &mut Meter,
    serve: impl Fn(sakia::net::TcpStream) -> F + 'static,
) -> anyhow::Result<(u64, Counters)>
where
    F: Future<Output = io::Result<u64>> + 'static,
{
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = sakia::net::TcpListener::bind(address).await.context("listen")?;
    order.place.tell(&listener)?;
    let mut control = sakia::net::TcpStream::connect(load.control).await.context("control")?;
    let port = listener.local_addr().context("listen")?.port();
    control.write_all(port.to_be_bytes().to_vec()).await.0.context("control")?;
    let connections = order.work.connections();
    let acceptor = sakia::spawn(async move {
        let mut tasks = Vec::with_capacity(connections);
        for _ in 0..connections {
            let (stream, _) = listener.accept().await?;
            tasks.push(sakia::spawn(serve(stream)));
        }
        io::Result::Ok(tasks)
    });
    hear(&mut control, BEGIN).await?;
    let tasks = acceptor.await.map_err(|error| anyhow!("{error}"))?.context("accept")?;
    meter.note_threads();
    meter.restart()?;
    let before = engine::counted(runtime);
    control.write_all(vec![BEGIN]).await.0.context("control")?;
    hear(&mut control, END).await?;
    let join = async || {
        let mut sum: u64 = 0;
        for task in tasks {
            let served = task.await.map_err(|error| anyhow!("{error}"))?;
            sum = sum.wrapping_add(served.context("a connection")?);
        }
        anyhow::Ok(sum)
    };
    let mut end = || {
        meter.end()?;
        anyhow::Ok(engine::between(&before, engine::counted(runtime)))
    };
    Ok(match order.work {
        // The load is done with it, but its last bytes may still be in flight.
        Work::Stream(_) | Work::Sources(_) => {
            let sum = join().await?;
            let counters = end()?;
            control.write_all(vec![END]).await.0.context("control")?;
            (sum, counters)
        }
        _ => {
            let counters = end()?;
            control.write_all(vec![END]).await.0.context("control")?;
            (join().await?, counters)
        }
    })
}

pub(super) async fn hear(control: &mut sakia::net::TcpStream, word: u8) -> anyhow::Result<()> {
    let (result, heard) = control.read(vec![0; 1]).await;
    ensure!(result.context("control")? == 1, "the load ended early");
    ensure!(heard == [word], "the load said {heard:?}");
    Ok(())
}
