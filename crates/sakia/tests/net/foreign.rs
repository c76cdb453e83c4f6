//! Connections for code of other ecosystems.

use std::convert::Infallible;

use hyper::service::service_fn;
use hyper::{Request, Response};
use sakia::compat::Compat;
use sakia::compat::hyper::SakiaExecutor;
use sakia::spawn;

use crate::support::{bytes, echo, on_each_backend, pair};

on_each_backend! {
    code_for_tokio
    code_for_futures
    http_by_hyper
}

async fn code_for_tokio() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (client, server) = pair().await;
    let echoing = spawn(echo(server));
    let mut client = Compat::tcp(client);
    client.write_all(&bytes(10_000)).await.unwrap();
    client.flush().await.unwrap();
    let mut received = vec![0; 10_000];
    client.read_exact(&mut received).await.unwrap();
    assert!(received == bytes(10_000));
    client.write_all(b"the end").await.unwrap();
    client.shutdown().await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"the end");
    echoing.await.unwrap().unwrap();
}

async fn code_for_futures() {
    use futures_util::{AsyncReadExt, AsyncWriteExt};

    let (client, server) = pair().await;
    let echoing = spawn(echo(server));
    let mut client = Compat::tcp(client);
    client.write_all(&bytes(10_000)).await.unwrap();
    client.close().await.unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received == bytes(10_000));
    echoing.await.unwrap().unwrap();
}

async fn http_by_hyper() {
    let (client, server) = pair().await;
    let serving = spawn(async move {
        let service = service_fn(async |request: Request<hyper::body::Incoming>| {
            Ok::<_, Infallible>(Response::new(request.uri().path().to_owned()))
        });
        hyper::server::conn::http2::Builder::new(SakiaExecutor::new())
            .serve_connection(Compat::tcp(server), service)
            .await
    });
    let executor = SakiaExecutor::new();
    let client = hyper::client::conn::http2::handshake(executor, Compat::tcp(client)).await;
    let (mut sender, connection) = client.unwrap();
    let connection = spawn(connection);
    let request = Request::get("http://example/over/tcp").body(String::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert!(response.status().is_success());
    drop((sender, response));
    connection.await.unwrap().unwrap();
    serving.await.unwrap().unwrap();
}
