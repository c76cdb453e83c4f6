//! An allocator that counts calls and bytes.
//!
//! It sits between a test program and [`System`]. Counts are kept twice: for the whole process, in atomics,
//! and per thread, in cells that need neither allocation nor destructor, so that counting works while a
//! thread starts and while its thread-locals are torn down. Tests run in parallel, so an exact claim is
//! about one thread, with [`measure`].
//!
//! Only successful calls are counted. Any thread may call these.
//!
//! ```
//! use sakia_testkit::alloc_count::{CountingAllocator, measure};
//!
//! #[global_allocator]
//! static GLOBAL: CountingAllocator = CountingAllocator::new();
//!
//! let mut numbers: Vec<u32> = Vec::with_capacity(4);
//! assert_eq!(measure(|| numbers.extend([1, 2, 3, 4])).allocations, 0);
//! assert_eq!(measure(|| numbers.push(5)).reallocations, 1);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::array;
use std::cell::Cell;
use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls and bytes since the process or thread began, or between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that made a new allocation, zeroed or not.
    pub allocations: u64,
    /// Calls that freed one.
    pub deallocations: u64,
    /// Calls that resized one, in place or not. These are in neither of the counts above.
    pub reallocations: u64,
    /// Bytes asked for: the sizes of new allocations, and the new sizes of resized ones.
    pub bytes_allocated: u64,
    /// Bytes given back: the sizes of freed allocations, and the old sizes of resized ones.
    pub bytes_deallocated: u64,
}

impl Counts {
    const ZERO: Self = Self::of([0; 5]);

    /// Returns the counts given in the order of the fields.
    const fn of(counts: [u64; 5]) -> Self {
        let [allocations, deallocations, reallocations, bytes_allocated, bytes_deallocated] =
            counts;
        Self { allocations, deallocations, reallocations, bytes_allocated, bytes_deallocated }
    }

    /// Returns the counts in the order of the fields.
    const fn all(self) -> [u64; 5] {
        let Self { allocations, deallocations, reallocations, bytes_allocated, bytes_deallocated } =
            self;
        [allocations, deallocations, reallocations, bytes_allocated, bytes_deallocated]
    }

    /// Returns the difference between `earlier` and `self`, two snapshots of the same counters.
    ///
    /// # Panics
    /// In builds with overflow checks, when `earlier` is the later one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let (now, earlier) = (self.all(), earlier.all());
        Self::of(array::from_fn(|field| now[field] - earlier[field]))
    }

    /// Returns the bytes allocated and not freed; negative if memory of other threads was freed.
    const fn bytes_held(self) -> i64 {
        self.bytes_allocated.wrapping_sub(self.bytes_deallocated) as i64
    }

    fn plus(self, other: Self) -> Self {
        let (one, other) = (self.all(), other.all());
        Self::of(array::from_fn(|field| one[field] + other[field]))
    }
}

/// Returns the allocations of all threads through [`CountingAllocator`] so far.
///
/// The fields are read one by one: while other threads allocate, they may be inconsistent.
pub fn process_counts() -> Counts {
    Counts::of(PROCESS.each_ref().map(|counter| counter.load(Ordering::Relaxed)))
}

/// Returns the calling thread's allocations through [`CountingAllocator`] so far.
pub fn thread_counts() -> Counts {
    THREAD.try_with(Cell::get).unwrap_or(Counts::ZERO)
}

/// Runs `f` and returns the calling thread's allocations meanwhile.
///
/// Allocations of other threads are not counted, even on behalf of `f`.
///
/// # Panics
/// When [`CountingAllocator`] is not the global allocator: zeros would prove nothing.
#[track_caller]
pub fn measure(f: impl FnOnce()) -> Counts {
    assert!(is_installed(), "the counting allocator is not this program's global allocator");
    let before = thread_counts();
    f();
    thread_counts().since(before)
}

/// Runs `f` and returns its result with the calling thread's peak: the most bytes allocated and not freed by
/// it at any time, above the amount before the call.
///
/// Allocations of other threads are not counted, even on behalf of `f`. Resizing an allocation counts as
/// done in place.
///
/// # Panics
/// When [`CountingAllocator`] is not the global allocator: zeros would prove nothing.
#[track_caller]
pub fn measure_peak<T>(f: impl FnOnce() -> T) -> (T, u64) {
    assert!(is_installed(), "the counting allocator is not this program's global allocator");
    let before = thread_counts().bytes_held();
    let outer = PEAK.replace(before);
    let output = f();
    let peak = PEAK.get();
    PEAK.set(outer.max(peak));
    (output, (peak - before) as u64)
}

/// Returns whether an ordinary allocation is counted.
fn is_installed() -> bool {
    let before = thread_counts();
    drop(hint::black_box(Box::new(0_u8)));
    thread_counts() != before
}

/// The counters behind [`process_counts`]. Statistics only: no other memory depends on them, hence `Relaxed`
/// throughout.
static PROCESS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

thread_local! {
    /// The counters behind [`thread_counts`]. Constant, without a destructor: the first use allocates and
    /// registers nothing.
    static THREAD: Cell<Counts> = const { Cell::new(Counts::ZERO) };
    /// The peak of bytes held by the thread, since [`measure_peak`] began.
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// Adds `step` to both sets of counters.
fn count(step: Counts) {
    for (counter, by) in PROCESS.iter().zip(step.all()).filter(|&(_, by)| by != 0) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
    // Without thread-locals the thread is ending, and its counts are not read any more.
    let _ = THREAD.try_with(|counts| {
        let sum = counts.get().plus(step);
        counts.set(sum);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(sum.bytes_held())));
    });
}

/// Counts the calls that it passes to [`System`]. Declare it `#[global_allocator]` in a test program.
#[derive(Debug, Default)]
pub struct CountingAllocator(());

impl CountingAllocator {
    /// Returns an allocator; all share the same counters.
    pub const fn new() -> Self {
        Self(())
    }
}

// SAFETY: every call is handed to `System`, which fulfils the contract, with the caller's own
// arguments, and its answer is returned unchanged. Counting neither allocates nor unwinds: it adds
// to atomics and to a constant thread-local without destructor, and `u64` counts do not overflow.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's duties are the same.
        let ptr = unsafe { System.alloc(layout) };
        count_allocation(ptr, layout);
        ptr
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's duties are the same.
        let ptr = unsafe { System.alloc_zeroed(layout) };
        count_allocation(ptr, layout);
        ptr
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are the same, and `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) };
        count(Counts { deallocations: 1, bytes_deallocated: layout.size() as u64, ..Counts::ZERO });
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's duties are the same, and `ptr` came from `System`.
        let new = unsafe { System.realloc(ptr, layout, new_size) };
        if !new.is_null() {
            count(Counts {
                reallocations: 1,
                bytes_allocated: new_size as u64,
                bytes_deallocated: layout.size() as u64,
                ..Counts::ZERO
            });
        }
        new
    }
}

fn count_allocation(ptr: *mut u8, layout: Layout) {
    if !ptr.is_null() {
        count(Counts { allocations: 1, bytes_allocated: layout.size() as u64, ..Counts::ZERO });
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread;

    use super::*;

    #[test]
    fn nothing_counts_nothing() {
        assert_eq!(measure(|| ()), Counts::ZERO);
    }

    #[test]
    fn box_counts_once_each_way() {
        let counts = measure(|| drop(black_box(Box::new([0_u8; 100]))));
        let expected = Counts {
            allocations: 1,
            deallocations: 1,
            reallocations: 0,
            bytes_allocated: 100,
            bytes_deallocated: 100,
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn allocation_kept_is_not_counted_as_freed() {
        let mut kept = None;
        let counts = measure(|| kept = Some(black_box(vec![0_u8; 4096])));
        let expected = Counts { allocations: 1, bytes_allocated: 4096, ..Counts::ZERO };
        assert_eq!(counts, expected);

        let counts = measure(|| kept = None);
        let expected = Counts { deallocations: 1, bytes_deallocated: 4096, ..Counts::ZERO };
        assert_eq!(counts, expected);
    }

    #[test]
    fn growth_is_a_reallocation_with_both_sizes() {
        let mut bytes: Vec<u8> = Vec::with_capacity(10);
        let counts = measure(|| bytes.reserve_exact(black_box(30)));
        let expected =
            Counts { reallocations: 1, bytes_allocated: 30, bytes_deallocated: 10, ..Counts::ZERO };
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_peak_is_what_was_held_at_a_time() {
        let bytes = |len: usize| black_box(vec![0_u8; len]);
        let kept = bytes(1 << 20);
        let ((), peak) = measure_peak(|| {
            (0..100).for_each(|_| drop(bytes(1000)));
            drop((bytes(300), bytes(900)));
        });
        assert_eq!(peak, 1200);
        let ((), outer) = measure_peak(|| {
            let held = bytes(500);
            assert_eq!(measure_peak(|| drop(bytes(2000))), ((), 2000));
            drop(held);
        });
        assert_eq!(outer, 2500);
        assert_eq!(measure_peak(|| drop(kept)), ((), 0));
    }

    #[test]
    fn failed_allocation_is_not_counted() {
        let mut bytes: Vec<u8> = Vec::new();
        let counts = measure(|| {
            assert!(bytes.try_reserve_exact(black_box(isize::MAX as usize)).is_err());
        });
        assert_eq!(counts, Counts::ZERO);
    }

    #[test]
    fn other_threads_count_for_the_process_only() {
        let process = process_counts();
        let worker = thread::spawn(|| {
            let before = thread_counts();
            drop(black_box(vec![0_u8; 1 << 20]));
            thread_counts().since(before)
        });
        let mut joined = None;
        let here = measure(|| joined = Some(worker.join().unwrap()));
        assert_eq!(joined.unwrap().bytes_allocated, 1 << 20);
        assert!(here.bytes_allocated < 1 << 20);
        assert!(process_counts().since(process).bytes_allocated >= 1 << 20);
    }

    #[test]
    fn allocating_while_thread_locals_are_destroyed() {
        struct AllocatesOnDrop;
        impl Drop for AllocatesOnDrop {
            fn drop(&mut self) {
                drop(black_box(vec![0_u8; 1 << 21]));
            }
        }
        thread_local! {
            static LATE: AllocatesOnDrop = const { AllocatesOnDrop };
        }
        let before = process_counts();
        thread::spawn(|| LATE.with(|_| ())).join().unwrap();
        assert!(process_counts().since(before).bytes_allocated >= 1 << 21);
    }
}
