//! A host with nonsense answers causes a typed error or a ring that does nothing useful: never a panic, never
//! an access outside of its memory.
//!
//! The fake host's maps lie between inaccessible pages, and the rest of their last page is watched. An access
//! outside faults; a write into the rest is found when the map ends.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use sakia_ring::{Builder, Cqe, Host, IowqMaxWorkers, Params, Ring, Sqe};

use crate::support::{Random, push};

/// The size of the largest map that the fake grants; a ring of the kernel's largest sizes fits.
const MAP_BYTES_MAX: usize = 16 << 20;
/// The byte that fills the rest of a map's last page.
const CANARY: u8 = 0xa5;
const REGISTER_RING_FDS: u32 = 20;
const REGISTER_RESIZE_RINGS: u32 = 33;

/// A function that answers a set-up or a resize.
type Answer = Box<dyn FnMut(&mut Params)>;

struct State {
    answer: Answer,
    random: Random,
    /// The address and length of each live map.
    maps: Vec<(NonNull<u8>, usize)>,
    /// If set, each enter overwrites the queues.
    scribbles: bool,
    /// If set, a resize is answered with `answer`; otherwise it is refused.
    resizes: bool,
}

#[derive(Clone)]
struct Fake(Rc<RefCell<State>>);

impl Fake {
    fn new(seed: u64, answer: impl FnMut(&mut Params) + 'static) -> Self {
        Self(Rc::new(RefCell::new(State {
            answer: Box::new(answer),
            random: Random::new(seed),
            maps: Vec::new(),
            scribbles: false,
            resizes: false,
        })))
    }

    /// Writes a number at an offset of the ring's first map.
    fn poke(&self, offset: u32, value: u32) {
        let (addr, len) = self.0.borrow().maps[0];
        assert!(offset as usize + 4 <= len);
        // SAFETY: within the live map, aligned by the tests; both sides access it atomically.
        unsafe { addr.add(offset as usize).cast::<AtomicU32>().as_ref() }
            .store(value, Ordering::Release);
    }
}

impl State {
    /// Fills the head of the first map, where the tests keep the indices, with nonsense.
    fn scribble(&mut self) {
        let Some(&(addr, len)) = self.maps.first() else {
            return;
        };
        for word in 0..(len / 4).min(64) {
            // SAFETY: within the live map, and aligned.
            let cell = unsafe { addr.cast::<AtomicU32>().add(word).as_ref() };
            let old = cell.load(Ordering::Relaxed);
            let value = match self.random.below(6) {
                0 => old.wrapping_add(1 << 31),
                1 => old.wrapping_sub(1),
                2 => self.random.next() as u32,
                3 => u32::MAX,
                _ => old,
            };
            cell.store(value, Ordering::Relaxed);
        }
    }

    fn result(&mut self) -> io::Result<u32> {
        let nonsense = self.random.next() as u32;
        match self.random.below(4) {
            0 => Err(Errno::TIME.into()),
            1 => Err(Errno::AGAIN.into()),
            2 => Ok(nonsense),
            _ => Ok(0),
        }
    }
}

fn page() -> usize {
    sakia_ring::PAGE_BYTES_MAX
}

// SAFETY: `map` returns fresh pages and keeps them until `unmap`; the calls touch only the maps and, for the
// two registrations with an answer, their argument.
unsafe impl Host for Fake {
    unsafe fn setup(&self, _entries: u32, params: &mut Params) -> io::Result<OwnedFd> {
        (self.0.borrow_mut().answer)(params);
        Ok(File::open("/dev/null")?.into())
    }

    unsafe fn enter(
        &self,
        _ring: u32,
        _to_submit: u32,
        _min_complete: u32,
        _flags: u32,
        _arg: *const c_void,
        _arg_size: usize,
    ) -> io::Result<u32> {
        let mut state = self.0.borrow_mut();
        if !state.scribbles {
            return Ok(0);
        }
        state.scribble();
        state.result()
    }

    unsafe fn register(
        &self,
        _ring: i32,
        opcode: u32,
        arg: *mut c_void,
        _nr_args: u32,
    ) -> io::Result<u32> {
        let mut state = self.0.borrow_mut();
        match opcode {
            REGISTER_RESIZE_RINGS => {
                if !state.resizes {
                    return Err(Errno::INVAL.into());
                }
                // SAFETY: this registration's argument is one `io_uring_params`.
                (state.answer)(unsafe { &mut *arg.cast::<Params>() });
                Ok(0)
            }
            REGISTER_RING_FDS => {
                // SAFETY: this registration's argument begins with the index that the host returns.
                unsafe { arg.cast::<u32>().write(state.random.next() as u32) };
                Ok(1)
            }
            _ => Ok(0),
        }
    }

    fn map(&self, _ring: BorrowedFd<'_>, _offset: u64, len: usize) -> io::Result<NonNull<u8>> {
        if len > MAP_BYTES_MAX {
            return Err(Errno::NOMEM.into());
        }
        let page = page();
        let whole = len.next_multiple_of(page);
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new map at an address the kernel chooses, unknown to all other code; only its middle is
        // made accessible, and only that is written.
        let addr = unsafe {
            let guarded = whole + 2 * page;
            let none = ProtFlags::empty();
            let base = rustix::mm::mmap_anonymous(ptr::null_mut(), guarded, none, flags)?;
            let addr = base.cast::<u8>().add(page);
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            rustix::mm::mprotect(addr.cast(), whole, access)?;
            addr.add(len).write_bytes(CANARY, whole - len);
            addr
        };
        let addr = NonNull::new(addr).expect("mmap never returns null");
        self.0.borrow_mut().maps.push((addr, len));
        Ok(addr)
    }

    unsafe fn unmap(&self, addr: NonNull<u8>, len: usize) {
        let page = page();
        let whole = len.next_multiple_of(page);
        let maps = &mut self.0.borrow_mut().maps;
        let index = maps.iter().position(|&map| map == (addr, len));
        maps.remove(index.expect("a map is ended once, with its own length"));
        // SAFETY: the rest of the live map's last page, and then the map with its guards.
        unsafe {
            let rest = std::slice::from_raw_parts(addr.as_ptr().add(len), whole - len);
            assert!(rest.iter().all(|&byte| byte == CANARY), "written past the end");
            rustix::mm::munmap(addr.as_ptr().sub(page).cast(), whole + 2 * page).unwrap();
        }
    }
}

/// The fields of a sane fake: indices at the front, then the completions, then the array.
const SQ_HEAD: u32 = 0;
const SQ_TAIL: u32 = 4;
const CQ_HEAD: u32 = 8;
const CQ_TAIL: u32 = 12;
const ENTRIES: u32 = 8;
const FEATURES: u32 = 0x3ffff;

fn sane(params: &mut Params) {
    params.features = FEATURES;
    params.sq_entries = ENTRIES;
    params.cq_entries = ENTRIES * 2;
    params.sq_off.head = SQ_HEAD;
    params.sq_off.tail = SQ_TAIL;
    params.sq_off.flags = 16;
    params.sq_off.dropped = 20;
    params.cq_off.head = CQ_HEAD;
    params.cq_off.tail = CQ_TAIL;
    params.cq_off.overflow = 24;
    params.cq_off.cqes = 256;
    params.sq_off.array = 256 + ENTRIES * 2 * 16;
}

fn build(fake: &Fake) -> Result<Ring<Fake>, sakia_ring::SetupError> {
    Builder::with_host(fake.clone()).sq_entries(ENTRIES).cq_entries(ENTRIES * 2).build()
}

#[test]
fn a_sane_fake_is_accepted() {
    let fake = Fake::new(1, sane);
    let mut ring = build(&fake).unwrap();
    push(&mut ring, Sqe::nop()).unwrap();
    assert_eq!(ring.enter(0, None).unwrap().consumed, 0);
    fake.poke(SQ_HEAD, 1);
    fake.poke(CQ_TAIL, 1);
    assert_eq!(ring.enter(0, None).unwrap().consumed, 1);
    assert_eq!(ring.reap(&mut [Cqe::default(); 4]), 1);
    drop(ring);
    assert!(fake.0.borrow().maps.is_empty());
}

/// A change of a sane answer.
type Change = fn(&mut Params);

#[test]
fn sizes_and_offsets_out_of_bounds_are_typed_errors() {
    let changes: &[(&str, Change)] = &[
        ("no submission entries", |p| p.sq_entries = 0),
        ("no completion entries", |p| p.cq_entries = 0),
        ("not a power of two", |p| p.sq_entries = 7),
        ("not a power of two", |p| p.cq_entries = 24),
        ("huge submission queue", |p| p.sq_entries = 1 << 31),
        ("huge completion queue", |p| p.cq_entries = 1 << 31),
        ("twice the largest", |p| p.sq_entries = 65_536),
        ("twice the largest", |p| p.cq_entries = 131_072),
        ("head outside", |p| p.sq_off.head = 1 << 20),
        ("tail at the very end", |p| p.sq_off.tail = 256 + 16 * 16),
        ("tail across the end", |p| p.sq_off.tail = 256 + 16 * 16 - 2),
        ("flags outside", |p| p.sq_off.flags = u32::MAX),
        ("dropped outside", |p| p.sq_off.dropped = u32::MAX - 3),
        ("completion head outside", |p| p.cq_off.head = u32::MAX - 3),
        ("completion tail outside", |p| p.cq_off.tail = 1 << 31),
        ("overflow outside", |p| p.cq_off.overflow = 4096),
        ("unaligned head", |p| p.sq_off.head = 1),
        ("unaligned tail", |p| p.cq_off.tail = 14),
        ("unaligned completions", |p| p.cq_off.cqes = 260),
    ];
    for (what, change) in changes {
        let fake = Fake::new(1, |params| {
            sane(params);
            change(params);
        });
        let error = build(&fake).expect_err(what);
        assert!(!error.is_refusal(), "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains("io_uring_setup: "), "{what}: {text}");
        assert!(fake.0.borrow().maps.is_empty(), "{what}: a map was left behind");
    }
}

#[test]
fn an_array_outside_is_a_typed_error() {
    for offset in [1 << 20, u32::MAX, 257] {
        let fake = Fake::new(1, move |params| {
            sane(params);
            // As a kernel that has cleared the flag.
            params.flags &= !(1 << 16);
            params.sq_off.array = offset;
        });
        // The map is as long as the array needs, so an array may lie far away.
        match build(&fake) {
            Ok(ring) => drop(ring),
            Err(error) => assert!(error.to_string().contains("io_uring_setup"), "{error}"),
        }
        assert!(fake.0.borrow().maps.is_empty());
    }
}

#[test]
fn missing_features_are_a_refusal() {
    for bit in [0, 1, 2, 8] {
        let fake = Fake::new(1, move |params| {
            sane(params);
            params.features = FEATURES & !(1 << bit);
        });
        let error = build(&fake).unwrap_err();
        assert!(error.is_refusal(), "feature bit {bit}: {error}");
        assert!(fake.0.borrow().maps.is_empty());
    }
}

#[test]
fn a_head_that_jumps_consumes_nothing() {
    let fake = Fake::new(1, sane);
    let mut ring = build(&fake).unwrap();
    for jump in [9, 1 << 31, u32::MAX, (1 << 31) + 3] {
        while push(&mut ring, Sqe::nop()).is_some() {}
        assert_eq!(ring.sq_pending(), ENTRIES);
        fake.poke(SQ_HEAD, jump);
        assert_eq!(ring.enter(0, None).unwrap().consumed, 0);
        assert_eq!((ring.sq_pending(), ring.sq_space()), (ENTRIES, 0));
    }
    fake.poke(SQ_HEAD, ENTRIES);
    assert_eq!(ring.enter(0, None).unwrap().consumed, ENTRIES);
}

#[test]
fn a_tail_that_jumps_brings_no_more_than_the_queue_holds() {
    let fake = Fake::new(1, sane);
    let mut ring = build(&fake).unwrap();
    let mut out = vec![Cqe::default(); 100];
    for jump in [17, 1 << 31, u32::MAX] {
        fake.poke(CQ_TAIL, jump);
        assert_eq!(ring.cq_ready(), ENTRIES * 2);
        assert_eq!(ring.reap(&mut out), (ENTRIES * 2) as usize);
    }
}

/// Heads and tails may start at any value, as after four billion entries.
#[test]
fn positions_wrap() {
    let fake = Fake::new(1, sane);
    let start = u32::MAX - 2;
    let mut ring = build(&fake).unwrap();
    // These jumps exceed the sizes of the queues; the ring bounds them, so they do no harm.
    for (offset, value) in [(SQ_HEAD, start), (CQ_HEAD, start), (CQ_TAIL, start)] {
        fake.poke(offset, value);
    }
    assert_eq!(ring.reap(&mut [Cqe::default(); 100]), (ENTRIES * 2) as usize);
    assert_eq!(ring.sq_pending(), 0);
    while push(&mut ring, Sqe::nop()).is_some() {}
    assert_eq!(ring.sq_pending(), ENTRIES);
}

/// Returns a random number, often a corner case.
fn corner(random: &mut Random) -> u32 {
    let any = random.next() as u32;
    random.pick(&[
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        16,
        64,
        192,
        256,
        4092,
        4096,
        4100,
        32_768,
        65_536,
        65_537,
        1 << 20,
        1 << 31,
        u32::MAX - 3,
        u32::MAX,
        any,
        any & 0xfff,
        any & 0xff_fffc,
    ])
}

#[test]
fn random_answers_and_scribbles_do_no_harm() {
    let (mut rings, mut errors) = (0, 0);
    for seed in 1..=4000 {
        let mut random = Random::new(seed);
        let fake = Fake::new(seed, move |params| {
            sane(params);
            for _ in 0..random.below(4) {
                let value = corner(&mut random);
                let fields = [
                    &mut params.sq_entries,
                    &mut params.cq_entries,
                    &mut params.flags,
                    &mut params.features,
                    &mut params.sq_off.head,
                    &mut params.sq_off.tail,
                    &mut params.sq_off.flags,
                    &mut params.sq_off.dropped,
                    &mut params.sq_off.array,
                    &mut params.cq_off.head,
                    &mut params.cq_off.tail,
                    &mut params.cq_off.overflow,
                    &mut params.cq_off.cqes,
                ];
                let count = fields.len() as u64;
                for (index, field) in fields.into_iter().enumerate() {
                    if index as u64 == random.next() % count {
                        *field = value;
                    }
                }
            }
        });
        match build(&fake) {
            Ok(ring) => {
                use_up(ring, &fake, seed);
                rings += 1;
            }
            Err(error) => {
                assert!(!error.to_string().contains('\n'));
                errors += 1;
            }
        }
        assert!(fake.0.borrow().maps.is_empty(), "seed {seed}: a map was left behind");
    }
    assert!(rings > 400 && errors > 400, "the test has lost its subject: {rings}, {errors}");
}

/// Makes random calls on a ring while the host scribbles.
fn use_up(mut ring: Ring<Fake>, fake: &Fake, seed: u64) {
    fake.0.borrow_mut().scribbles = true;
    fake.0.borrow_mut().resizes = true;
    let mut random = Random::new(seed ^ 0x5eed);
    let mut out = vec![Cqe::default(); 300];
    for _ in 0..50 {
        match random.below(8) {
            0..3 => {
                for _ in 0..random.below(12) {
                    if let Some(position) = push(&mut ring, Sqe::nop().user_data(1)) {
                        ring.make_nop(position, random.below(2));
                    }
                }
            }
            3 => drop(ring.submit()),
            4 => drop(ring.enter(random.next() as u32, Some(Duration::ZERO))),
            5 => {
                let room = random.below(300) as usize;
                assert!(ring.reap(&mut out[..room]) <= room.min(ring.cq_entries() as usize));
            }
            6 => drop(ring.resize(random.next() as u32, random.next() as u32)),
            _ => {
                drop(ring.probe());
                drop(ring.set_iowq_max_workers(IowqMaxWorkers::default()));
                if let Ok(buf_ring) = ring.register_buf_ring(1, 4, true) {
                    drop(ring.buf_ring_head(&buf_ring));
                    drop(ring.unregister_buf_ring(buf_ring));
                }
                ring.needs_enter();
                ring.is_overflowing();
                ring.cq_lost();
                ring.sq_dropped();
            }
        }
        assert!(ring.sq_pending() <= ring.sq_entries());
        assert!(ring.sq_space() <= ring.sq_entries());
        assert!(ring.cq_ready() <= ring.cq_entries());
    }
}
