//! Prints a trace, a line for each slice and moment.

fn main() {
    let path = std::env::args().nth(1).expect("the path of a trace");
    let trace = sakia_trace::Trace::read(&std::fs::read(path).expect("a file")).expect("a trace");
    if std::env::args().nth(2).is_some() {
        print!("{}", sakia_trace::Summary::of(&trace));
        return;
    }
    println!("{} {} truncated: {}", trace.process, trace.pid, trace.is_truncated);
    for track in &trace.tracks {
        println!("== {} {:?} below {:x}", track.name, track.tid, track.parent);
        let mut all: Vec<_> = track.slices.iter().chain(&track.instants).collect();
        all.sort_by_key(|slice| slice.begin);
        for slice in all.iter().take(60) {
            println!(
                "{:>14} {:>9?} {}{} {:?}",
                slice.begin,
                slice.duration(),
                "  ".repeat(slice.depth),
                slice.name,
                slice.arguments
            );
        }
    }
}
