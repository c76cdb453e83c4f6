//! The places of tasks that the library's loops start: those of the calls that started the loops.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use std::{fs, io};

use sakia::fs::{AtomicFile, File, GroupCommit};
use sakia::io::{BufResultExt, Writer};
use sakia::net::{ServeOptions, TcpListener, TcpStream, UnixStream, serve};
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;
use sakia::time::sleep;
use sakia::trace::{Recording, Trace, TraceOptions};
use sakia::{CancellationToken, Engine, JoinSet, Runtime};
use sakia_driver::Bypass;

use crate::refused::children;

#[test]
fn tasks_of_loops_have_the_place_of_the_caller() {
    children::run("places");
}

pub fn scene_places() -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("sakia-places-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let recording = Recording::to_file(folder.join("trace"), TraceOptions::default()).unwrap();
    let mut lines = BTreeSet::new();
    let runtime = Runtime::builder().bypass(Bypass::Never).build().unwrap();
    runtime.block_on(async {
        lines.extend(of_servers().await.unwrap());
        lines.extend(of_files(&folder.join("file")).await.unwrap());
        lines.extend(of_other_traits(&folder.join("other")).await.unwrap());
    });
    lines.extend(of_engines(&folder.join("file")).unwrap());
    drop(runtime);
    let trace = Trace::read(&fs::read(recording.stop().unwrap().path).unwrap()).unwrap();
    fs::remove_dir_all(&folder).unwrap();

    let moments = trace.tracks.iter().flat_map(|track| &track.instants);
    let places = moments.filter(|moment| moment.name == "task spawned");
    let mut seen = BTreeSet::new();
    let places = places.map(|moment| moment.text("place").expect("it has one"));
    // Futures of `block_on` are none of the tasks that the recording numbers.
    for place in places.filter(|place| *place != "before the recording") {
        let line = place.strip_prefix(concat!(file!(), ":"));
        let line = line.unwrap_or_else(|| panic!("a task of {place}, which is no caller"));
        seen.insert(line.split(':').next().unwrap().parse().unwrap());
    }
    let missing: Vec<u32> = lines.difference(&seen).copied().collect();
    assert!(missing.is_empty(), "no tasks of lines {missing:?}, but of {seen:?}");
    Ok(())
}

async fn of_servers() -> io::Result<[u32; 5]> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let token = CancellationToken::new();
    let stop = token.clone();
    let options = ServeOptions::new().stop(async move { stop.canceled().await });
    let served = line!() + 1;
    let server = serve(listener, options, async |_: TcpStream, _| io::Result::Ok(()));
    let spawned = line!() + 1;
    let server = sakia::spawn(server);
    let mut client = TcpStream::connect(address).await?;
    assert!(client.recv().await?.is_empty(), "the handler is done");
    token.cancel();
    server.await.unwrap()?;

    let signals = line!() + 1;
    drop(on_signals([SignalKind::WINDOW_CHANGE])?);
    let (near, _far) = UnixStream::pair()?;
    let split = line!() + 1;
    let (_reader, writer) = near.into_split();
    drop(writer);
    let mut set = JoinSet::new();
    let joined = line!() + 1;
    set.spawn(async {});
    set.join_next().await.unwrap().unwrap();
    Ok([served, spawned, signals, split, joined])
}

async fn of_files(path: &std::path::Path) -> io::Result<[u32; 3]> {
    let grouped = line!() + 1;
    let group = GroupCommit::new(File::create(path).await?).await?;
    group.append_durable("text").await.value()?;
    let (reader, writer) = sakia::io::pipe()?;
    let written = line!() + 1;
    let mut writer = Writer::new(writer);
    writer.write_all(b"text").await?;
    writer.close().await?;
    drop(reader);
    let positions = line!() + 1;
    let mut writer = Writer::at(File::create(path).await?, 0);
    writer.write_all(b"text").await?;
    writer.close().await?;
    // A file whose making is given up at each moment: in one of them a task removes it.
    for polls in 0..12 {
        let mut file = pin!(AtomicFile::create(path));
        for _ in 0..polls {
            if poll_fn(|cx| Poll::Ready(file.as_mut().poll(cx).is_ready())).await {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
    sakia::fs::save(path, "text").await?;
    Ok([grouped, written, positions])
}

#[cfg(all(feature = "futures-io", feature = "hyper", feature = "tokio"))]
async fn of_other_traits(path: &std::path::Path) -> io::Result<[u32; 4]> {
    use hyper::rt::Executor;
    use sakia::compat::Compat;
    use sakia::compat::hyper::SakiaExecutor;
    use tokio::io::AsyncWriteExt;

    let started = line!() + 1;
    let executor = SakiaExecutor::new();
    executor.execute(async {});
    let by_default = line!() + 1;
    let executor = SakiaExecutor::default();
    executor.execute(async {});
    let (near, _far) = UnixStream::pair()?;
    let adapted = line!() + 1;
    let mut stream = Compat::stream(near);
    stream.write_all(b"text").await?;
    stream.shutdown().await?;
    let buffered = line!() + 1;
    let mut file = Compat::file(File::create(path).await?);
    file.write_all(b"text").await?;
    file.shutdown().await?;
    Ok([started, by_default, adapted, buffered])
}

#[cfg(not(all(feature = "futures-io", feature = "hyper", feature = "tokio")))]
async fn of_other_traits(_: &std::path::Path) -> io::Result<[u32; 0]> {
    Ok([])
}

fn of_engines(path: &std::path::Path) -> io::Result<[u32; 7]> {
    let built = line!() + 1;
    let engine = Engine::new()?;
    let opened = line!() + 1;
    let file = engine.open(path).submit().wait()?;
    let read = line!() + 1;
    let read_whole = engine.read(path);
    read_whole.submit().wait()?;
    let transferred = line!() + 1;
    let transfer = file.read_at(vec![0; 4], 0);
    transfer.submit().wait().value()?;
    let counted = line!() + 1;
    engine.counters().wait()?;
    let ran = line!() + 1;
    engine.run(|| async {}).wait()?;
    let many = line!() + 1;
    let requests = engine.submit_many([file.sync_data()]);
    requests.submit().wait();
    Ok([built, opened, read, transferred, counted, ran, many])
}
