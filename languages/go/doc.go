// Package sakia reads and writes files without a thread for each operation that waits.
//
// A [File] has the methods of [os.File], with the same results and errors. It differs where a call would
// block: os.File then occupies a thread until the disk or the server of the file answers, so ten thousand
// goroutines that wait are ten thousand threads. Here they share a queue of libsakia, which performs their
// requests on a ring of io_uring, and a goroutine that sleeps in the runtime's poller for all of them.
//
// # The way of a call
//
//  1. A read is tried without waiting, by preadv2(2) with RWF_NOWAIT. Bytes that are in the page cache are
//     copied by the calling thread. Up to 16 KiB the call is made without telling Go's scheduler, which
//     saves a tenth of its time. The goroutine then keeps its processor, also while the memory that is read
//     into is paged in: where that may take long, such as a mapping of a file on a slow disk, ask for
//     [SetTellScheduler].
//  2. A call that may wait while few others do is a plain system call: it is cheaper than any queue.
//  3. Further calls are collected and submitted to the queue together, by one of the callers. One goroutine
//     takes the results.
//
// [Stats] counts each way.
//
// # Memory
//
// While a method without a context runs, the kernel may use its slice, as with os.File. Methods whose names
// end in Context return as soon as the context is done, even if the kernel cannot stop the operation: the
// kernel has a buffer of this package, and bytes are copied from or to the slice before the method returns.
// A canceled write may still happen, whole or in part, at any later time, even after later writes.
//
// Pointers to Go memory reach C only while they are pinned.
//
// # Without a ring
//
// Where the kernel refuses io_uring, the queue works on threads of the library; without cgo, or on a system
// without libsakia's features, all calls are those of os.File. [Why] has the reason.
//
// # Systems
//
// Linux on amd64, arm64, riscv64 and loong64.
//
// # Linking
//
// The package finds libsakia by pkg-config. With the build tag sakia_static it is linked statically.
package sakia
