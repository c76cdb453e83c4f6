//! Tests the program through its command line and network interface.
#![expect(clippy::unwrap_used, reason = "the failure of a test is its report")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use examples_common::{Folder, Server, transfer_bytes};

const PROGRAM: &str = env!("CARGO_BIN_EXE_quic");

fn serve(folder: &Folder) -> Server {
    let certificate = folder.path().join("certificate");
    Server::start(PROGRAM, ["serve".as_ref(), "--certificate".as_ref(), certificate.as_os_str()])
}

fn client(server: &Server, file: &Path, certificate: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["send", &server.address.to_string()]).arg(file);
    command.arg("--certificate").arg(certificate).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn send(server: &Server, folder: &Folder, name: &str) -> Output {
    let certificate = folder.path().join("certificate");
    client(server, &folder.path().join(name), &certificate).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn files_arrive_as_they_are() {
    let folder = Folder::new("quic-files");
    let len = transfer_bytes();
    let files = [("one", len), ("two", len / 2 + 1), ("empty", 0)];
    let sums = files.map(|(name, len)| folder.fill(name, len, len));
    let server = serve(&folder);
    // All transfers run concurrently.
    thread::scope(|scope| {
        for ((name, len), sum) in files.into_iter().zip(sums) {
            let (server, folder) = (&server, &folder);
            scope.spawn(move || {
                let output = send(server, folder, name);
                let expected = format!("sent {len} bytes, their sum is {sum:032x}\n");
                assert_eq!(text(&output.stdout), expected, "{output:?}");
                assert!(output.status.success(), "{output:?}");
            });
        }
    });
    assert_eq!(server.stop().errors, "");
}

/// Waits until a client has read so much of its file that it must have sent some of it.
fn wait_for_progress(client: &mut Child) {
    loop {
        let counts = fs::read_to_string(format!("/proc/{}/io", client.id())).unwrap();
        let read =
            counts.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok());
        if read.unwrap() > 20_000_000 {
            return;
        }
        assert!(client.try_wait().unwrap().is_none(), "it has ended by itself");
        thread::yield_now();
    }
}

#[test]
fn clients_may_leave_in_the_middle() {
    let folder = Folder::new("quic-leave");
    folder.fill("file", transfer_bytes(), 1);
    let endless = folder.path().join("endless");
    File::create(&endless).unwrap().set_len(1 << 40).unwrap();
    let server = serve(&folder);
    let certificate = folder.path().join("certificate");
    let mut leaving = client(&server, &endless, &certificate).spawn().unwrap();
    wait_for_progress(&mut leaving);
    leaving.kill().unwrap();
    leaving.wait().unwrap();
    assert!(send(&server, &folder, "file").status.success());
    server.stop();
}

#[test]
fn a_server_that_is_not_trusted_gets_nothing() {
    let folder = Folder::new("quic-trust");
    folder.fill("file", 1000, 1);
    let (server, other) = (serve(&folder), Folder::new("quic-other"));
    let impostor = serve(&other);
    let file = folder.path().join("file");
    let output = client(&impostor, &file, &folder.path().join("certificate")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("certificate"), "{output:?}");
    impostor.stop();
    server.stop();
}

#[test]
fn a_server_that_ends_is_an_error() {
    let folder = Folder::new("quic-ends");
    let endless = folder.path().join("endless");
    File::create(&endless).unwrap().set_len(1 << 40).unwrap();
    let server = serve(&folder);
    let certificate = folder.path().join("certificate");
    let mut client = client(&server, &endless, &certificate).spawn().unwrap();
    wait_for_progress(&mut client);
    server.stop();
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("Error: "), "{output:?}");
}

#[test]
fn transfers_can_be_compared() {
    let output = Command::new(PROGRAM)
        .args(["compare", "--rounds", "2", "--bytes", "1000000"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("\nratio "), "{output:?}");
}
