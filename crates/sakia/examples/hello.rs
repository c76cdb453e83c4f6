//! The smallest program: `cargo run -p sakia --example hello`.

fn main() {
    sakia::block_on(async {
        let greeting = sakia::spawn(async { "hello" });
        println!("{}", greeting.await.expect("it does not panic"));
    });
}
