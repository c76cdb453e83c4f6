//! HTTP by hyper, over pipes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::pipe;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::Duration;

use hyper::body::{Body, Bytes, Incoming};
use hyper::rt::{Executor, Timer};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use sakia::compat::Compat;
use sakia::compat::hyper::{SakiaExecutor, SakiaTimer};
use sakia::io::{PipeReader, PipeWriter, Reader, Streamed, Writer};
use sakia::time::now;
use sakia::{Runtime, block_on, spawn};

type Stream = Compat<(Reader<Streamed<PipeReader>>, Writer<PipeWriter>)>;

/// Returns two connected ends, and descriptors that keep unread last bytes of either from being lost, which
/// another test counts.
fn connection() -> (Stream, Stream, [OwnedFd; 2]) {
    let ((a_input, b_output), (b_input, a_output)) = (pipe().unwrap(), pipe().unwrap());
    let kept = [OwnedFd::from(a_input.try_clone().unwrap()), b_input.try_clone().unwrap().into()];
    let end = |input: std::io::PipeReader, output: std::io::PipeWriter| {
        let reader = Reader::new(PipeReader::from_fd(input.into()));
        Compat::new((reader, Writer::new(PipeWriter::from_fd(output.into()))))
    };
    (end(a_input, a_output), end(b_input, b_output), kept)
}

async fn collect(body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut body = pin!(body);
    let mut all = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        all.extend(frame?.into_data().unwrap());
    }
    Ok(all)
}

/// Answers with the body of the request.
async fn echo(request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let body = collect(request.into_body()).await.unwrap();
    Ok(Response::new(String::from_utf8(body).unwrap()))
}

fn text(len: usize) -> String {
    (0..len).map(|at| char::from(b'a' + (at % 23) as u8)).collect()
}

#[test]
fn requests_over_http_1() {
    block_on(async {
        let (client, server, _kept) = connection();
        let serving = spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(SakiaTimer::new()).header_read_timeout(Duration::from_secs(60));
            http.serve_connection(server, service_fn(echo)).await
        });
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, String>(client).await.unwrap();
        let connection = spawn(connection);
        for len in [0, 5, 1 << 20] {
            let response = sender.send_request(Request::new(text(len))).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert!(collect(response.into_body()).await.unwrap() == text(len).as_bytes());
        }
        drop(sender);
        connection.await.unwrap().unwrap();
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn requests_over_http_2_side_by_side() {
    block_on(async {
        let (client, server, _kept) = connection();
        let executor = SakiaExecutor::new();
        let serving = spawn(async move {
            let mut http = hyper::server::conn::http2::Builder::new(executor);
            http.timer(SakiaTimer::new()).keep_alive_interval(Duration::from_secs(60));
            http.serve_connection(server, service_fn(echo)).await
        });
        let (sender, connection) =
            hyper::client::conn::http2::handshake::<_, _, String>(executor, client).await.unwrap();
        let connection = spawn(connection);
        let requests: Vec<_> = (0..10)
            .map(|number| {
                let mut sender = sender.clone();
                spawn(async move {
                    let body = text(number * 30_000);
                    let response = sender.send_request(Request::new(body)).await.unwrap();
                    let body = collect(response.into_body()).await.unwrap();
                    assert!(body == text(number * 30_000).as_bytes());
                })
            })
            .collect();
        for request in requests {
            request.await.unwrap();
        }
        drop(sender);
        connection.await.unwrap().unwrap();
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn a_silent_client_is_left_in_the_end() {
    block_on(async {
        let (_client, server, _kept) = connection();
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(SakiaTimer::new()).header_read_timeout(Duration::from_millis(20));
        let error = http.serve_connection(server, service_fn(echo)).await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
    });
}

#[test]
fn a_client_that_goes_away() {
    block_on(async {
        let (client, server, _kept) = connection();
        let serving = spawn(async move {
            let http = hyper::server::conn::http1::Builder::new();
            http.serve_connection(server, service_fn(echo)).await
        });
        let mut client = client;
        tokio::io::AsyncWriteExt::write_all(&mut client, b"POST / HTTP/1.1\r\n").await.unwrap();
        drop(client);
        assert!(serving.await.unwrap().unwrap_err().is_incomplete_message());
    });
}

#[test]
fn tasks_of_hyper_run_and_may_stay() {
    let (sender, receiver) = async_channel::bounded(1);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let local = std::rc::Rc::new(Bytes::from_static(b"of this thread"));
        SakiaExecutor::new().execute(async move {
            sender.send(local.len()).await.unwrap();
            std::future::pending::<()>().await;
        });
        assert_eq!(receiver.recv().await, Ok(14));
    });
    drop(runtime);
    assert!(receiver.is_closed());
}

#[test]
fn sleeps_can_be_reset() {
    Runtime::builder().virtual_time(true).build().unwrap().block_on(async {
        let timer = SakiaTimer::new();
        let begin = now();
        timer.sleep(Duration::from_secs(5)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(5));

        let mut sleep = timer.sleep(Duration::from_secs(1));
        let deadline = timer.now() + Duration::from_secs(1000);
        timer.reset(&mut sleep, deadline);
        sleep.await;
        let passed = begin.elapsed();
        assert!(passed > Duration::from_secs(995) && passed <= Duration::from_secs(1006));

        timer.sleep_until(std::time::Instant::now()).await;
        drop(timer.sleep(Duration::MAX));
    });
}
