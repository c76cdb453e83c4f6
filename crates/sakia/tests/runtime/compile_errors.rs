//! Programs that do not compile, and the compiler's advice.
//!
//! The compiler checks them against the library that this test is linked with, or a later build of it: a
//! dependency that does the same by `cargo` would build the library and all its dependencies once more.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use std::{env, fs, io};

use crate::refused::children::announce_skip;

/// Lines that compile, with the same tokio as the library's.
const GOOD: &str = r#"
    pub async fn literals(mut stream: TcpStream) { stream.write_all(b"bytes").await.value().unwrap() }
    pub async fn texts(mut stream: TcpStream) { stream.write_all(Rc::<str>::from("text")).await.0.unwrap() }
    pub async fn last() { async {
        let listener = TcpListener::bind("[::1]:0").await?;
        listener.local_addr()?;
        serve(listener, ServeOptions::new(), async |_: TcpStream, _| io::Result::Ok(())).await
    }.await.unwrap(); }
    pub async fn one_error() -> sakia::Result<Served> {
        let listener = timeout(Duration::MAX, TcpListener::bind("[::1]:0")).await??;
        Ok(serve(listener, ServeOptions::new(), async |_: TcpStream, _| io::Result::Ok(())).await?)
    }
    pub fn reads(from: TcpStream) -> impl tokio::io::AsyncRead { sakia::compat::Compat::unbuffered(from) }
    pub fn sends() -> impl Send { async { sakia::spawn(sakia::fs::read("file")).await.unwrap() } }
"#;

const USES: &str = "
    use std::io; use std::rc::Rc; use std::time::Duration;
    use sakia::fs::File; use sakia::io::*; use sakia::net::*; use sakia::time::timeout;
";

/// Programs that do not compile, and parts of what the compiler says of each.
const WRONG: &[(&str, &[&str])] = &[
    (
        "async fn f(mut to: TcpStream, buf: &Vec<u8>) { to.write_all(buf).await.value().unwrap() }",
        &[
            "error[E0277]: `&Vec<u8>` cannot be lent to the kernel\n",
            "not a buffer that an operation can own\n",
            "takes its buffer by value and gives it back with the result",
            "such as `bytes.to_vec()`",
        ],
    ),
    (
        "async fn f(from: File, mut buf: Vec<u8>) { from.read_at(&mut buf, 0).await.value().unwrap(); }",
        &[
            "error[E0277]: `&mut Vec<u8>` cannot be lent to the kernel to be written to\n",
            "not a buffer that an operation can own and fill\n",
            "`let (result, buf) = file.read_at(buf, 0).await`",
        ],
    ),
    (
        "async fn f(mut to: TcpStream, buf: &[u8]) { to.write_all(buf).await.value().unwrap() }",
        &["must outlive `'static`"],
    ),
    (
        "async fn f(own: std::net::TcpListener) { \
            serve(own, ServeOptions::new(), async |_: TcpStream, _| io::Result::Ok(())).await.unwrap(); }",
        &["`std::net::TcpListener` accepts no connections", "`TcpListener::from_std`"],
    ),
    (
        r#"async fn f() { TcpListener::bind(("::", 80_i32)).await.unwrap(); }"#,
        &["`(&str, i32)` is no address of a socket", "an address with a port", "`\"host:port\"`"],
    ),
    (
        "fn f(file: std::fs::File) { Reader::new(file); }",
        &[
            "`std::fs::File` is not read in order by `sakia::io::AsyncRead`",
            "open it by `sakia::fs`",
        ],
    ),
    (
        "fn f() { Writer::new(io::stdout()); }",
        &["`std::io::Stdout` is not written in order", "open it by `sakia::fs`"],
    ),
    (
        "fn f(stream: TcpStream) { Reader::with_depth(stream, 4096, 2); }",
        &["`sakia::net::TcpStream` is not read at positions", "by `Reader::new`"],
    ),
    (
        "fn f(file: std::fs::File) { Writer::at(file, 0); }",
        &["`std::fs::File` is not written at positions", "`sakia::fs::File::create`"],
    ),
    (
        "async fn f(reader: &mut Reader<TcpStream>) { reader.line(80).await.unwrap(); }",
        &["`sakia::net::TcpStream` is no source of blocks", "`Reader::with_depth` of a file"],
    ),
    ("fn f(_: &OwnedWriteHalf<u8>) {}", &["`u8` is no connection of Sakia"]),
    (
        "async fn f() { sakia::select! { \
            _ = async {} => {}, _ = async {} => {}, _ = async {} => {}, _ = async {} => {}, \
            _ = async {} => {}, _ = async {} => {}, _ = async {} => {}, _ = async {} => {}, \
            _ = async {} => {}, } }",
        &["`select!` takes up to eight futures"],
    ),
    (
        "async fn f() { let a = async || (); \
            sakia::join!(a(), a(), a(), a(), a(), a(), a(), a(), a()); }",
        &["`join!` cannot wait for `(", "`join!` takes one to eight futures"],
    ),
    (
        "async fn f() { let a = async || Ok::<(), ()>(()); \
            sakia::try_join!(a(), a(), a(), a(), a(), a(), a(), a(), a()).unwrap(); }",
        &["`try_join!` cannot wait for `(", "with the same error"],
    ),
    ("#[sakia::main] async fn main(_: u8) {}", &["error: `main` takes no arguments\n"]),
    ("#[sakia::main] fn f() {}", &["error: #[sakia::main] needs an `async fn`\n"]),
    (
        "fn f() { sakia::sim::check(0..1, async |_| 5) }",
        &["the body of a test does not return `", "neither `()` nor a `Result<(), E>`"],
    ),
    (
        "fn f(to: File) { use tokio::io as t; use sakia::compat::Compat; \
            fn r(_: impl t::AsyncRead) {} fn b(_: impl t::AsyncBufRead) {} \
            fn w(_: impl t::AsyncWrite) {} fn s(_: impl t::AsyncSeek) {} \
            r(Compat::new(&to)); b(Compat::new(&to)); w(Compat::new(&to)); s(Compat::new(to)); }",
        &[
            "`Compat<&sakia::fs::File>` does not read\n",
            "`Compat<&sakia::fs::File>` does not read through a buffer\n",
            "`Compat<&sakia::fs::File>` does not write\n",
            "`Compat<sakia::fs::File>` does not seek\n",
            "= note: use `Compat::file`\n",
        ],
    ),
];

/// Libraries as a compiled program finds them.
struct Libraries {
    folder: PathBuf,
    sakia: PathBuf,
    tokio: PathBuf,
}

impl Libraries {
    /// Finds libraries with which the good lines compile, the newest that there are. A folder may have
    /// several of a name, of other features and older compilers.
    ///
    /// # Errors
    /// There is no compiler.
    fn find() -> io::Result<Self> {
        let program = env::current_exe().expect("it runs");
        let folder = program.parent().expect("programs are in a folder").to_owned();
        let mut reasons = Vec::new();
        for sakia in candidates(&folder, "libsakia-") {
            for tokio in candidates(&folder, "libtokio-") {
                let it = Self { folder: folder.clone(), sakia: sakia.clone(), tokio };
                match it.errors_of(&format!("{USES}{GOOD}"))? {
                    errors if errors.is_empty() => return Ok(it),
                    errors => reasons.push(errors),
                }
            }
        }
        panic!("no library in {}, or programs do not compile: {reasons:#?}", folder.display());
    }

    /// Returns the compiler's errors.
    fn errors_of(&self, source: &str) -> io::Result<String> {
        let folder = env::temp_dir().join(format!("sakia-compile-errors-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for files");
        let file = folder.join("wrong.rs");
        fs::write(&file, source).expect("a file in it");
        let library = |name: &str, path: &Path| {
            let mut argument = OsString::from(format!("{name}="));
            argument.push(path);
            argument
        };
        let flags = env::var("RUSTFLAGS").unwrap_or_default();
        let output = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "-Awarnings", "-o"])
            .arg(folder.join("wrong.rmeta"))
            .arg("-L")
            .arg(library("dependency", &self.folder))
            .arg("--extern")
            .arg(library("sakia", &self.sakia))
            .arg("--extern")
            .arg(library("tokio", &self.tokio))
            .args(flags.split_whitespace())
            .arg(&file)
            .output();
        fs::remove_dir_all(&folder).expect("it can be removed");
        output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Returns the libraries of this name, the newest first.
fn candidates(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)
        .expect("it has this program")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|end| end == "rlib"))
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(name))
        .map(|path| (fs::metadata(&path).unwrap().modified().unwrap(), path))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

#[test]
fn advice_says_what_to_write_instead() {
    let libraries = match Libraries::find() {
        Ok(libraries) => libraries,
        Err(error) => return announce_skip(&format!("no compiler: {error}")),
    };
    for (line, expected) in WRONG {
        let errors = libraries.errors_of(&format!("{USES}{line}")).expect("it was there before");
        for part in *expected {
            assert!(errors.contains(part), "{line}\nsays nothing of {part:?}:\n{errors}");
        }
    }
}
