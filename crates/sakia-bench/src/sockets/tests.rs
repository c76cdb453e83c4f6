use super::*;
use crate::cell::{self, Outcome, Spec};

fn sockets(cells: Vec<Cell>, exits_us: Vec<u64>) -> Sockets {
    let options = Options {
        cells,
        exits_us,
        operations: Some(200),
        quick: false,
        variants: Variant::ALL.to_vec(),
        load: None,
    };
    let congestion = CONGESTION.to_owned();
    Sockets::at(options, Place { namespace: false, congestion, processors: None })
}

/// Runs a variant at a point. Returns its counters.
fn run(sockets: &mut Sockets, point: usize, variant: Variant) -> crate::cell::Counters {
    let expected = sockets.prepare(point, &|| false).unwrap();
    let (variant, input) = (variant.name().to_owned(), sockets.input(point));
    let spec = Spec { experiment: NAME.into(), variant, input };
    let about = format!("{} {}", spec.variant, sockets.about.points[point].label);
    match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
        Outcome::Measured(measured) => {
            assert_eq!(measured.sum, expected, "{about}");
            assert!(measured.section.wall_ns > 0, "{about}");
            measured.counters
        }
        Outcome::Unavailable(reason) => panic!("{about}: {reason}"),
    }
}

#[test]
fn every_program_is_served_by_every_variant() {
    // A thousand connections are too many for a test's descriptors.
    let cells: Vec<_> = CELLS.into_iter().filter(|cell| cell.size != 1000).collect();
    let mut sockets = sockets(cells, vec![0]);
    for point in 0..sockets.points.len() {
        for variant in Variant::ALL {
            run(&mut sockets, point, variant);
        }
    }
}

#[test]
fn calls_of_the_host_are_counted() {
    let cells = vec![CELLS[0], CELLS[5]];
    let mut sockets = sockets(cells, vec![1]);
    let exits = |counters: &crate::cell::Counters| counters[EXITS];
    // In the loop of writes, the plain variant makes one call per write.
    let plain = run(&mut sockets, 0, Variant::Plain);
    assert!(plain["send"] >= 200 && exits(&plain) >= 200, "{plain:?}");
    let gathered = run(&mut sockets, 0, Variant::All);
    assert!(gathered["send"] < 100, "{gathered:?}");
    // The loop of reads.
    let plain = run(&mut sockets, 1, Variant::Plain);
    assert!(plain["receive"] >= 200, "{plain:?}");
    let ahead = run(&mut sockets, 1, Variant::Ahead);
    assert!(ahead["receive"] < plain["receive"], "{ahead:?}");
}

#[test]
fn cells_have_names_and_points() {
    for cell in CELLS {
        assert_eq!(Cell::by_name(&cell.name()), [cell]);
    }
    let udp: Vec<_> = Cell::by_name("udp").into_iter().map(Cell::name).collect();
    assert_eq!(udp, ["udp-64", "udp-1400"]);
    assert_eq!(Cell::by_name("iperf-send").len(), 3);
    assert!(Cell::by_name("iperf").is_empty());
    assert!(QUICK_CELLS.iter().all(|name| Cell::by_name(name).len() == 1));
    let sockets = sockets(vec![CELLS[0], CELLS[13]], vec![0, 10]);
    let labels: Vec<_> = sockets.about.points.iter().map(|point| point.label.as_str()).collect();
    assert_eq!(labels, ["send-256 0 us", "send-256 10 us", "threads-64 0 us", "threads-64 10 us"]);
    let operations: Vec<_> =
        sockets.about.points.iter().map(|point| point.work.operations).collect();
    assert_eq!(operations, [200, 200, 256, 256], "each connection has as many");
    assert_eq!(sockets.about.pairs[0], ("default", "plain"));
    assert_eq!(sockets.about.points[3].params["exit_us"], 10);
}
