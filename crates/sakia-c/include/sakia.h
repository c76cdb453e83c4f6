/*
 * Sakia: io_uring for C and other languages. Made by `cargo xtask header`; do not edit.
 *
 * A loop performs requests for the thread that made it, on a ring or, where the machine offers
 * none, on epoll and threads. A request has a token, and its result brings the token back: exactly
 * once, unless SAKIA_MORE says that more results will follow. Submission and wait are one system
 * call; what ends at once, such as a read of cached bytes, is done by the submission itself.
 *
 *   sakia_loop_options options = SAKIA_LOOP_OPTIONS;
 *   sakia_loop *loop;
 *   if (sakia_loop_new(&options, &loop) < 0) ... sakia_last_error() ...
 *   sakia_request read = {0};
 *   read.op = SAKIA_OP_READ; read.file = file; read.buf = memory; read.len = 4096; read.token = 7;
 *   sakia_loop_submit(loop, &read, 1, NULL, NULL);
 *   sakia_result result;
 *   while (sakia_loop_wait(loop, &result, 1, -1) == 0) {}
 *
 * A queue takes the same requests from any number of threads, and performs them on threads of its own.
 * What ends at once is done by the thread that submits it; any thread takes the results of the rest. It
 * is for threads that may block, and for files; a switch of threads costs more than a loop's requests.
 *
 * A tree of files is copied or removed by threads of the library (sakia_copy_tree, sakia_remove_tree);
 * the program drains its failures and looks at its counts when it likes.
 *
 * Owners. What a request's pointers lead to belongs to the library from the submission until the
 * request's last result was taken. Until then a program does not free it, does not write to it, and
 * does not read what the request writes; for ever if the request leaks (sakia_loop_stop, sakia_queue_stop). Paths,
 * arrays of buffers, and addresses and control messages to send are copied by the submission.
 * Handles are counted: what a function stores or a result brings is a reference of the program's.
 *
 * Threads. A loop is used on the thread that made it. Queues, files and wakers are for any thread, and
 * the library makes its own memory of them safe. Signal handlers call sakia_waker_wake, and nothing
 * else, also those that run within sakia_loop_wait_masked. The library calls no function of the
 * program's, and its threads block signals.
 *
 * Forks. In a child, calls on the parent's loops, queues and trees are errors, and wakes do nothing. A child
 * makes its own. Do not fork while another thread is within a call on a file that the child will use.
 *
 * Errors. A negative value is an error number (-EINVAL), and sakia_last_error has its text. Errors of
 * an operation are results; an error of a submission means that the request was not accepted. Null
 * pointers, unknown numbers, sizes and flags, other threads and forked children are found, and
 * change nothing. No exception or panic leaves a function: a bug of the library is -EIO, after
 * which the loop or the queue is of no more use.
 *
 * A program can still break: memory or numbers that go before their result was taken; pointers that
 * are not null and lead nowhere, or to too little; paths without a zero at the end; references that
 * are given back twice; a handle that is used after its last reference; a loop or a queue
 * that is used after it was freed.
 *
 * Versions. Structures may grow at their ends, by multiples of eight bytes. A program says the sizes that it
 * was compiled with in the options of a loop or a queue, and an older program runs with a newer library: the
 * fields that it does not have are zero. A program sets the fields that it does not use to zero, and may then
 * run with an older library, too. Files: 64-bit Linux, kernel 4.18; a ring needs 6.1.
 */

#ifndef SAKIA_H
#define SAKIA_H

#include <stddef.h>
#include <stdint.h>

/* As `offset` of a request: the file's own position. */
#define SAKIA_CURRENT_POSITION UINT64_MAX

/* The options of a loop that say which header the program was compiled with. */
#define SAKIA_LOOP_OPTIONS \
    { sizeof(sakia_loop_options), sizeof(sakia_request), sizeof(sakia_result), 0, 0 }

/* The same for those of a queue. */
#define SAKIA_QUEUE_OPTIONS \
    { sizeof(sakia_queue_options), sizeof(sakia_request), sizeof(sakia_result), 0, 0, 0, 0 }

/* The same for those of a tree. */
#define SAKIA_TREE_OPTIONS \
    { sizeof(sakia_tree_options), 0, 0, 0, 0 }


// The version of this header: 65536 * major + 256 * minor + patch.
#define SAKIA_VERSION 256

// In `options` of a request: its file is the number `fd`, not `file`. Nothing is remembered for a number; it
// must be open, and the same file, until the result was taken.
#define SAKIA_BY_FD 1

// The same for the second file of a request: it is `fd2`, not `file2`.
#define SAKIA_BY_FD2 2

// In `flags` of a result: more results of the same request will follow.
#define SAKIA_MORE 1

// In `flags` of options: an error where there is no ring. By default loops and queues run on epoll and
// threads there.
#define SAKIA_RING_ONLY 1

// In `flags` of options: epoll and threads, even where there is a ring.
#define SAKIA_NO_RING 2

// In `flags` of options: no request is done by a plain system call within the submission. A ring gets them
// all, whatever their files: a server that does not answer may then hold up its other requests.
#define SAKIA_NO_PLAIN_CALLS 4

// Nothing, by way of the queue.
#define SAKIA_OP_NOP 0

// Reads up to `len` bytes of `file` into `buf`, at `offset`. `-EINVAL`: no room. Value: the bytes; fewer
// than asked for do not mean the end of the file, but 0 does.
#define SAKIA_OP_READ 1

// Writes `len` bytes of `buf` to `file`, at `offset`. Value: the bytes.
#define SAKIA_OP_WRITE 2

// Reads into several buffers: `buf` is a `const struct iovec *`, `len` their number, at most 1024; `flags`
// are `RWF_*`. The array is copied. `-EINVAL`: none of them has room. Value: the bytes.
#define SAKIA_OP_READV 3

// Writes from several buffers, as `SAKIA_OP_READV`.
#define SAKIA_OP_WRITEV 4

// Opens `path` below `file`, closed on exec: `flags` are `O_*`, `arg[0]` the mode, `offset2` the
// `RESOLVE_*` of `openat2(2)`. The result has the file.
#define SAKIA_OP_OPEN 5

// Cancels what is under way on `file`, on all loops, waits for that, and closes it. A loop that has used
// the file does its part in its next wait. The handle stays, to be given back by `sakia_file_unref`; its
// requests end with `-EBADF`.
#define SAKIA_OP_CLOSE 6

// Makes the contents of `file` durable; with 1 in `flags` not all of its metadata.
#define SAKIA_OP_SYNC 7

// Writes a `struct statx` to `buf`, of `len` bytes (256): of `path` below `file`, or of `file` itself if
// `path` is null. `flags` are `AT_*`.
#define SAKIA_OP_STAT 8

// Writes a `struct statfs` of `file` to `buf`, of `len` bytes (120).
#define SAKIA_OP_STATFS 9

// Sets the length of `file` to `offset`.
#define SAKIA_OP_TRUNCATE 10

// Allocates or frees `offset2` bytes of `file` at `offset`; `flags` is the mode of `fallocate(2)`.
#define SAKIA_OP_ALLOCATE 11

// Advises the kernel of the use of `offset2` bytes of `file` at `offset`; `flags` is one `POSIX_FADV_*`.
#define SAKIA_OP_ADVISE 12

// Makes the directory `path` below `file`, with the mode `arg[0]`.
#define SAKIA_OP_MKDIR 13

// Removes `path` below `file`; a directory with `AT_REMOVEDIR` in `flags`.
#define SAKIA_OP_UNLINK 14

// Renames `path` below `file` to `path2` below `file2`; `flags` are `RENAME_*`.
#define SAKIA_OP_RENAME 15

// Gives `path` below `file` another name, `path2` below `file2`; `flags` are `AT_*`.
#define SAKIA_OP_LINK 16

// Makes the symbolic link `path` below `file`, which leads to `path2`.
#define SAKIA_OP_SYMLINK 17

// Writes the target of the symbolic link `path` below `file` to `buf`, at most `len` bytes, without a zero
// at the end. Value: the bytes.
#define SAKIA_OP_READLINK 18

// Writes entries of the directory `file` to `buf`, as `getdents64(2)`, at most `len` bytes. Value: the
// bytes; 0 at the end.
#define SAKIA_OP_READ_DIRECTORY 19

// Sets the mode of `path` below `file`, or of `file` itself if `path` is null, to `arg[0]`. `flags` are
// `AT_*`.
#define SAKIA_OP_CHMOD 20

// As `SAKIA_OP_CHMOD`, the owner to `arg[0]` and the group to `arg[1]`; `UINT32_MAX` leaves one as it is.
#define SAKIA_OP_CHOWN 21

// As `SAKIA_OP_CHMOD`, the times: `buf` is a `const struct timespec[2]` as for `utimensat(2)`, which is
// copied; null for now.
#define SAKIA_OP_SET_TIMES 22

// Copies `len` bytes of `file` at `offset` to `file2` at `offset2`, within the kernel. Value: the bytes.
#define SAKIA_OP_COPY_RANGE 23

// Waits until one of the events `flags` of `file` is ready: `POLLIN` and so on. Value: the ready ones.
#define SAKIA_OP_POLL 24

// Makes a socket, closed on exec, of the domain `arg[0]`, the type `arg[1]` and the protocol `arg[2]`. The
// result has the file.
#define SAKIA_OP_SOCKET 25

// Gives `file` the address `buf`, of `len` bytes: a `struct sockaddr_in`, `_in6` or `_un`, which is copied.
#define SAKIA_OP_BIND 26

// Makes `file` listen, with a backlog of `arg[0]`.
#define SAKIA_OP_LISTEN 27

// Connects `file` to the address `buf`, as for `SAKIA_OP_BIND`.
#define SAKIA_OP_CONNECT 28

// Accepts a connection of `file`. The result has it; its peer's address is written to `buf`, at most `len`
// bytes, unless that is null. Value: the bytes of the address.
#define SAKIA_OP_ACCEPT 29

// Accepts connections of `file` until it is canceled, or an accept fails: a result with a file for each,
// with `SAKIA_MORE` if there will be more. Not on a queue.
#define SAKIA_OP_ACCEPT_MANY 30

// Tells of the events `flags` of `file` until it is canceled, or the file is closed: a result with
// `SAKIA_MORE` for each wait in which one is ready, as long as it stays so. Not on a queue. Value: the ready
// ones.
#define SAKIA_OP_POLL_MANY 36

// Receives from the connection `file`, a stream, until the peer sends no more, or it is canceled, into
// memory of the loop: a result with `memory` and `SAKIA_MORE` for each piece. The kernel receives ahead, up
// to 256 KiB; then the peer has to wait. There may be no other receive on the connection meanwhile. Not on a
// queue. Value: the bytes; 0 at the end.
#define SAKIA_OP_RECEIVE_MANY 37

// Sends `len` bytes of `buf` on the connection `file`; `flags` are `MSG_*`. Value: the bytes.
#define SAKIA_OP_SEND 31

// Receives up to `len` bytes of the connection `file` into `buf`; `flags` are `MSG_*`. Value: the bytes; 0
// at the end.
#define SAKIA_OP_RECEIVE 32

// Sends a datagram: `buf` is a `const struct msghdr *` of one buffer, `len` its size (56), `flags` are
// `MSG_*`. The structure, the address and the control messages are copied, and descriptors in these are
// duplicated. `-EINVAL`: more than 64 KiB of control messages. Value: the bytes.
#define SAKIA_OP_SEND_MESSAGE 33

// Receives a datagram: `buf` is a `struct msghdr *` of one buffer, `len` its size (56), `flags` are `MSG_*`.
// The structure and its address and control memory are the library's, too, until the result was taken; then
// they are filled in, with at most 64 KiB of control messages: no datagram has more. Received descriptors
// are the program's. Value: the bytes.
#define SAKIA_OP_RECEIVE_MESSAGE 34

// Shuts `file` down in the directions `arg[0]`: `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
#define SAKIA_OP_SHUTDOWN 35

// In `flags` of `sakia_tree_options`: an exact copy, with owners, times, links and attributes, as `cp -a`.
#define SAKIA_TREE_ARCHIVE 1

// In `flags` of `sakia_tree_options`: what cannot be opened is removed and made anew.
#define SAKIA_TREE_FORCE 2

// In `flags` of `sakia_tree_options`: symbolic links are followed.
#define SAKIA_TREE_FOLLOW 4

// In `flags` of `sakia_tree_options`: other file systems are left out.
#define SAKIA_TREE_ONE_FILE_SYSTEM 8

// In `flags` of `sakia_tree_options`: the copy is durable at its end.
#define SAKIA_TREE_DURABLE 16

// In `flags` of `sakia_tree_options`: the copy is read again, and compared.
#define SAKIA_TREE_VERIFY 32

// In `flags` of `sakia_tree_options`: nothing is written.
#define SAKIA_TREE_DRY_RUN 64

// In `flags` of `sakia_tree_options`: entries that exist stay.
#define SAKIA_TREE_KEEP 128

// In `flags` of `sakia_tree_options`: entries that exist and are not older stay.
#define SAKIA_TREE_UPDATE 256

// A file, a socket or a pipe: a counted handle for any thread and any number of loops. It is closed when the
// last reference is given back and no request uses it, or by `SAKIA_OP_CLOSE`.
typedef struct sakia_file sakia_file;

// Performs requests for the thread that made it. A call on another thread, or in a forked child, is an
// error.
typedef struct sakia_loop sakia_loop;

// Performs requests for any number of threads, on threads of its own. In a forked child each call is an
// error.
typedef struct sakia_queue sakia_queue;

// A copy or a removal, which works on threads of the library from its beginning to its end. In a forked
// child each call is an error.
typedef struct sakia_tree sakia_tree;

// Ends waits of a loop or a queue, from any thread: a counted handle, which may outlive either.
typedef struct sakia_waker sakia_waker;

// How a loop is made. Begin with `SAKIA_LOOP_OPTIONS`.
typedef struct sakia_loop_options {
  // The size of this structure as the program was compiled, at least 24. Fields after it are zero.
  size_t size;
  // The size of `sakia_request` as the program was compiled, at least 64: up to `fd`. Fields after it are
  // zero.
  size_t request_size;
  // The size of `sakia_result` as the program was compiled.
  size_t result_size;
  // The most requests that may be under way; 0 for 65,536.
  uint32_t under_way_max;
  // `SAKIA_RING_ONLY`, `SAKIA_NO_RING`, `SAKIA_NO_PLAIN_CALLS`.
  uint32_t flags;
} sakia_loop_options;

// One operation. Set all of it to zero first, then the fields that the operation names; other fields must
// be zero. What its pointers lead to belongs to the library from the submission until the last result was
// taken: a program neither frees nor changes it, and does not read what is written by the request. Paths,
// and everything that is said to be copied, may go when the submission returns, and so may the request
// itself.
typedef struct sakia_request {
  // One of `SAKIA_OP_*`.
  uint32_t op;
  // `SAKIA_BY_FD`, `SAKIA_BY_FD2`.
  uint32_t options;
  // Comes back with the result: any number. Below 2^63 it costs a little less.
  uint64_t token;
  // The file, or the directory in which `path` begins; null for the working directory.
  struct sakia_file *file;
  // Memory.
  void *buf;
  // Its bytes, or a number of elements.
  size_t len;
  // An offset in the file, or `SAKIA_CURRENT_POSITION`.
  uint64_t offset;
  // Written by the submission: names the request for `sakia_loop_cancel`. 0 if it is done.
  uint64_t ticket;
  // Flags of the operation, by its system call.
  uint32_t flags;
  // The file's number, with `SAKIA_BY_FD`.
  int32_t fd;
  // The second file, or the directory in which `path2` begins.
  struct sakia_file *file2;
  // The second file's number, with `SAKIA_BY_FD2`.
  int32_t fd2;
  // Numbers.
  uint32_t arg[3];
  // A path, which ends with a zero.
  const char *path;
  // A second path.
  const char *path2;
  // The offset in the second file, or another large number.
  uint64_t offset2;
} sakia_request;

// A result of a request.
typedef struct sakia_result {
  // The token of the request.
  uint64_t token;
  // At least 0, or a negative error number.
  int64_t value;
  // A file that was opened, made or accepted: a reference of the program's, for `sakia_file_unref`. Null
  // otherwise.
  struct sakia_file *file;
  // `SAKIA_MORE`. Ignore unknown ones.
  uint32_t flags;
  // Zero.
  uint32_t reserved;
  // Bytes that `SAKIA_OP_RECEIVE_MANY` has received, `value` of them; null otherwise. They are the loop's,
  // and valid until `sakia_loop_give_back`, or the loop is freed.
  const void *memory;
  // Their name for `sakia_loop_give_back`; 0 without bytes.
  uint64_t lent;
} sakia_result;

// How a queue is made. Begin with `SAKIA_QUEUE_OPTIONS`.
typedef struct sakia_queue_options {
  // As in `sakia_loop_options`.
  size_t size;
  // As in `sakia_loop_options`.
  size_t request_size;
  // As in `sakia_loop_options`.
  size_t result_size;
  // The most requests that may be under way; 0 for 65,536.
  uint32_t under_way_max;
  // `SAKIA_RING_ONLY`, `SAKIA_NO_RING`, `SAKIA_NO_PLAIN_CALLS`.
  uint32_t flags;
  // Threads that perform requests, at most 64; 0 for one.
  uint32_t threads;
  // Zero.
  uint32_t reserved;
} sakia_queue_options;

// How a tree is copied or removed. Begin with `SAKIA_TREE_OPTIONS`.
typedef struct sakia_tree_options {
  // The size of this structure as the program was compiled.
  size_t size;
  // `SAKIA_TREE_*`.
  uint32_t flags;
  // Threads that work, at most 1024; 0 for one per processor.
  uint32_t threads;
  // The most entries in progress; 0 for 64.
  uint32_t limit;
  // Zero.
  uint32_t reserved;
} sakia_tree_options;

// The entries of a tree that were handled, by kind.
typedef struct sakia_counts {
  // Regular files.
  uint64_t files;
  // Directories.
  uint64_t directories;
  // Symbolic links.
  uint64_t symlinks;
  // Further names of a file that was copied.
  uint64_t hard_links;
  // FIFOs, sockets and devices.
  uint64_t others;
  // Entries that existed and stay.
  uint64_t skipped;
  // Bytes of contents.
  uint64_t bytes;
  // Failures.
  uint64_t failures;
} sakia_counts;

// A failure of a tree.
typedef struct sakia_failure {
  // The step that failed, in English.
  const char *operation;
  // The entry.
  const char *path;
  // The error number, positive.
  int32_t error;
  // Zero.
  uint32_t reserved;
} sakia_failure;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a loop for the calling thread, and stores it in `*ring`. `options` may not be null, since it says
// which header the program was compiled with; it is read before the call returns.
//
// Errors: `-EINVAL` sizes or flags that are not known, `-EFAULT` a null pointer, `-EMFILE`, `-ENFILE`,
// `-ENOMEM`; with `SAKIA_RING_ONLY` the reason why there is no ring. The environment variable
// `SAKIA_DRIVER` (`auto`, `uring` or `poll`) chooses unless a flag does. Kernel: a ring needs Linux 6.1.
int32_t sakia_loop_new(const struct sakia_loop_options *options,
                       struct sakia_loop **ring);

// Ends the loop, as `sakia_loop_stop` with a limit of one second, and frees it; nothing for null. Results
// that were not taken are lost, and their files closed. A program that must know which memory leaked stops
// the loop first.
//
// The loop's thread. Errors: `-EPERM` another thread, or a forked child; then nothing is freed. Can break: a
// later use of the loop.
int32_t sakia_loop_free(struct sakia_loop *ring);

// Submits `count` requests, which lie one after the other, and returns how many were accepted. Each of these
// has a last result, whatever happens; its `ticket` is filled in. They reach the kernel with the next
// `sakia_loop_wait` at the latest.
//
// Results that are there are stored in `results`, which has room for `count` of them, and their number in
// `*done`. They may be those of earlier requests, and more may be left for `sakia_loop_take`. Both
// pointers may be null, then all results are left.
//
// If not all were accepted, the next one cannot be submitted: a call that begins with it returns the reason.
//
// The loop's thread; a signal handler may not call it. Errors, all about the first request: `-EAGAIN` as
// many are under way as may be, so take results first; `-EINVAL` an operation, a flag or a size that is
// not known; `-EFAULT` a null pointer; `-EBADF` a file is missing; `-EPERM` another thread, or a forked
// child. Owner: see `sakia_request`. Can break: memory that is freed, or a number that is closed, before
// the last result of its request was taken.
int64_t sakia_loop_submit(struct sakia_loop *ring,
                          struct sakia_request *requests,
                          size_t count,
                          struct sakia_result *results,
                          size_t *done);

// Stores results that are there in `results`, at most `room`, and returns their number, perhaps 0.
//
// The loop's thread. Makes no system call: a language calls it before it releases its lock for
// `sakia_loop_wait`. Errors: `-EINVAL` no room, `-EFAULT` a null pointer, `-EPERM` another thread, or a
// forked child. Owner: the memory of a request is the program's again once its last result was taken.
int64_t sakia_loop_take(struct sakia_loop *ring,
                        struct sakia_result *results,
                        size_t room);

// Submits what was not, waits for a result if there is none, and stores results as `sakia_loop_take`. It
// waits at most `timeout_ns` nanoseconds; for ever if that is negative, and not at all if it is 0. Returns
// the number of results; 0 after a signal, after a wake, or when the time is over, and rarely for no
// reason.
//
// The loop's thread. Errors: as `sakia_loop_take`; others mean that the loop is of no more use. Kernel: one
// system call, as a rule.
int64_t sakia_loop_wait(struct sakia_loop *ring,
                        struct sakia_result *results,
                        size_t room,
                        int64_t timeout_ns);

// As `sakia_loop_wait`, with another signal mask while the thread sleeps, as `ppoll(2)`: for a program that
// blocks its signals, so that their handlers run within its waits and nowhere else. `mask` leads to a
// `sigset_t`; null stands for the thread's own. The kernel sets the mask and puts the thread to sleep in one
// step: no signal is missed between a look at what a handler has noted and the sleep. A signal that the mask
// lets through, pending or new, ends the wait after its handler has run, and a wait that does not sleep
// handles pending ones, too. Signals that it blocks stay pending.
//
// The loop's thread. Errors: as `sakia_loop_wait`. Kernel: one system call more, unless a signal ends it.
int64_t sakia_loop_wait_masked(struct sakia_loop *ring,
                               struct sakia_result *results,
                               size_t room,
                               int64_t timeout_ns,
                               const void *mask);

// Requests that the request with this ticket be canceled. Its result comes in any case: its value, if it
// was quicker, or `-ECANCELED`. A ticket whose request has ended, or of another loop, names nothing or is
// harmless to memory; but one of another loop may name a request of this one.
//
// The loop's thread. Errors: `-EPERM` another thread, or a forked child; `-EFAULT` null.
int32_t sakia_loop_cancel(struct sakia_loop *ring,
                          uint64_t ticket);

// Gives memory back to which bytes were received, by the `lent` of their result.
//
// The loop's thread. Errors: `-EINVAL` no bytes have this name, and as `sakia_loop_cancel`. Can break: bytes
// that are read afterwards.
int32_t sakia_loop_give_back(struct sakia_loop *ring,
                             uint64_t lent);

// Returns the number of requests whose last result was not taken.
//
// The loop's thread. Errors: as `sakia_loop_cancel`.
int64_t sakia_loop_under_way(struct sakia_loop *ring);

// Returns a new descriptor that becomes readable when a wait would bring something, for a foreign event
// loop to poll, level-triggered. Before that one sleeps, call `sakia_loop_wait` with a timeout of 0 until
// it returns 0.
//
// The loop's thread. Owner: the program closes the descriptor, before or after the loop. Errors: `-EMFILE`,
// `-ENFILE` none is left, and as `sakia_loop_cancel`.
int32_t sakia_loop_pollable(struct sakia_loop *ring);

// Stores in `*waker` a handle that ends the loop's waits.
//
// The loop's thread; the waker is for any thread. Owner: `sakia_waker_free` gives it back, before or after
// the loop's end. Errors: as `sakia_loop_cancel`.
int32_t sakia_loop_waker(struct sakia_loop *ring,
                         struct sakia_waker **waker);

// Returns why the loop runs on epoll and threads, not on a ring; null if it has a ring, or after an error.
//
// The loop's thread. Owner: the text is the loop's, and valid until it is freed.
const char *sakia_why_no_ring(struct sakia_loop *ring);

// Ends the loop: cancels what is under way, and waits at most `limit_ns` nanoseconds, or for ever if that
// is negative, for the kernel to give all memory back. Results of what has ended can still be taken; later
// requests end with `-ECANCELED`.
//
// Returns the number of requests that did not end, and stores the tokens of up to `room` of them in
// `leaked`, which may be null if `room` is 0. The kernel may use their memory for ever: it must stay as it
// is.
//
// The loop's thread. Errors: `-EFAULT` a null pointer, and as `sakia_loop_cancel`. May be called again,
// for more tokens.
int64_t sakia_loop_stop(struct sakia_loop *ring,
                        int64_t limit_ns,
                        uint64_t *leaked,
                        size_t room);

// Makes the descriptor `fd` the library's, and stores a handle of it in `*file`. The library closes it; the
// program does not use the number any more, except to look at it as `sakia_file_number` allows.
//
// Any thread. Errors: `-EBADF` it is not open, `-EFAULT` `file` is null; then the descriptor is still the
// program's. Can break: a number that other code closes, too.
int32_t sakia_file_adopt(int32_t fd,
                         struct sakia_file **file);

// Stores a handle of the open file `fd` in `*file`. The descriptor stays the program's, which keeps it open
// until a `SAKIA_OP_CLOSE` of the handle is answered: that ends all uses of it, and closes nothing. After
// the last reference alone, loops and queues that have used it may do so until they are freed. If none has,
// but `sakia_try_` functions alone, the number may be closed as soon as no such call is under way.
//
// Any thread. Errors: `-EBADF` it is not open, `-EFAULT` `file` is null. Can break: a number that is closed
// before, or used by the handle when it is another file's.
int32_t sakia_file_lend(int32_t fd,
                        struct sakia_file **file);

// Makes a descriptor of the library's own for the open file `fd`, and stores a handle of it in `*file`. `fd`
// stays the program's.
//
// Any thread. Errors: `-EBADF` it is not open, `-EMFILE` no descriptor is left, `-EFAULT` `file` is null.
int32_t sakia_file_duplicate(int32_t fd,
                             struct sakia_file **file);

// Adds a reference, and returns `file`; null for null.
//
// Any thread. Never fails. Can break: a file without a reference left.
struct sakia_file *sakia_file_ref(struct sakia_file *file);

// Gives a reference back; nothing for null. Requests under way keep the file open; it is closed after the
// last of them. If a loop has used it, that loop closes it, in its next wait.
//
// Any thread. Never fails. Can break: a reference that is given back twice.
void sakia_file_unref(struct sakia_file *file);

// Returns the number of the file's descriptor, for calls that the library does not offer. It is open as long
// as the program has a reference and does not close the file; the program must not close the number.
//
// Any thread. Errors: `-EFAULT` `file` is null.
int32_t sakia_file_number(const struct sakia_file *file);

// Gives the last reference back without closing the file, and returns the number of its descriptor, which is
// the program's from now on.
//
// Any thread. Errors, after which the reference is still the program's: `-EFAULT` `file` is null; `-EBUSY`
// there is another reference, a loop or a queue that has used the file was not freed, or the file is lent or
// closed.
int32_t sakia_file_release(struct sakia_file *file);

// Reads up to 256 KiB of `file` into `buf` at `offset`, on the calling thread, unless that may wait.
// Returns the bytes; `-EAGAIN` if it might wait, or is not tried because it lately would have: then submit
// a request. Linux 6 begins to read ahead all the same, and waits for a place in the queue of a disk that
// does not answer any more.
//
// Any thread, and no loop is needed: a language calls it with its lock held. Errors: `-EINVAL` no room,
// others as `pread(2)`. Keeps no memory.
int64_t sakia_try_read(const struct sakia_file *file,
                       uint8_t *buf,
                       size_t len,
                       uint64_t offset);

// Writes up to 256 KiB, as `sakia_try_read` reads.
//
// Any thread. Errors: as `pwrite(2)`. Keeps no memory.
int64_t sakia_try_write(const struct sakia_file *file,
                        const uint8_t *buf,
                        size_t len,
                        uint64_t offset);

// Receives up to `len` bytes that have arrived at the socket `file` into `buf`, on a stream up to 256 KiB.
// `flags` are `MSG_PEEK` or 0. Returns the bytes, 0 at the end of a stream; `-EAGAIN` if nothing has
// arrived. Bytes come to this call or to a request that receives at the same time.
//
// Any thread, and no loop is needed. Errors: `-EINVAL` no room, or other flags; `-ENOTSOCK`; others as
// `recv(2)`. Keeps no memory.
int64_t sakia_try_recv(const struct sakia_file *file,
                       uint8_t *buf,
                       size_t len,
                       uint32_t flags);

// Sends up to `len` bytes of `buf` on the connected socket `file`, on a stream as many as there is room for,
// up to 256 KiB. `flags` are `MSG_MORE` or 0. Returns the bytes; `-EAGAIN` if there is no room. They may
// come before those of requests under way, and between their parts. Raises no `SIGPIPE`.
//
// Any thread, and no loop is needed. Errors: `-EINVAL` other flags; `-ENOTSOCK`; others as `send(2)`. Keeps
// no memory.
int64_t sakia_try_send(const struct sakia_file *file,
                       const uint8_t *buf,
                       size_t len,
                       uint32_t flags);

// Writes a `struct statx` to `buf`, of `len` bytes (256): of `path` below `file`, or of `file` itself if
// `path` is null; null for `file` is the working directory. `flags` are `AT_*`; only 0 without a path.
// Returns 0; `-EAGAIN` if it might wait: a part of the path is not in the kernel's caches, or another
// machine or process may serve the file. Where there is such a mount, also for a path with a symbolic link
// on its way, and for a relative path to another mount.
//
// Any thread, and no loop is needed. Errors: `-EFAULT` no path and no file, or a null pointer; `-EINVAL`
// flags, or too little room; others as `statx(2)`. Keeps no memory. Kernel: paths need 5.12.
int32_t sakia_try_stat(const struct sakia_file *file,
                       const char *path,
                       uint32_t flags,
                       void *buf,
                       size_t len);

// Opens `path` below `directory`, closed on exec, and stores a handle in `*file`; null for `directory` is
// the working directory. `flags` are `O_*`, `resolve` the `RESOLVE_*` of `openat2(2)`. Returns 0; `-EAGAIN`
// with null in `*file` if it makes a file or cuts one off, if it might wait as `sakia_try_stat` does, and
// for a FIFO, whose other end does not notice, or a device.
//
// Any thread, and no loop is needed. Errors: `-EFAULT` a null pointer; others as `openat2(2)`. Owner: the
// reference is the program's, for `sakia_file_unref`. Kernel: 5.12.
int32_t sakia_try_open(const struct sakia_file *directory,
                       const char *path,
                       uint32_t flags,
                       uint64_t resolve,
                       struct sakia_file **file);

// Returns the version of the library, as `SAKIA_VERSION` is that of the header.
//
// Any thread. Never fails.
uint32_t sakia_version(void);

// Returns why the last failed call on this thread failed; an empty text if none has. In English, for people;
// error numbers are for programs.
//
// Any thread; a signal handler may not call it. The text is the library's, and valid until the next call
// that fails on this thread, or the thread's end. Never fails.
const char *sakia_last_error(void);

// Makes a queue with threads of its own, and stores it in `*queue`. `options` may not be null, since it says
// which header the program was compiled with; it is read before the call returns. The threads block signals,
// but for those that the machine raises in a thread.
//
// Any thread. Errors: `-EINVAL` sizes or flags that are not known, or more than 64 threads; `-EFAULT` a null
// pointer; `-EAGAIN` no thread, `-EMFILE`, `-ENFILE`, `-ENOMEM`; with `SAKIA_RING_ONLY` the reason why there
// is no ring. The environment variable `SAKIA_DRIVER` (`auto`, `uring` or `poll`) chooses unless a flag
// does. Kernel: a ring needs Linux 6.1.
int32_t sakia_queue_new(const struct sakia_queue_options *options,
                        struct sakia_queue **queue);

// Ends the queue, as `sakia_queue_stop` with a limit of one second, and frees it; nothing for null. Results
// that were not taken are lost, and their files closed. A program that must know which memory leaked stops
// the queue first.
//
// Any thread but those that are in another call on the queue, or begin one: there may be none. Errors:
// `-EPERM` a forked child; then nothing is freed. Can break: a later use of the queue.
int32_t sakia_queue_free(struct sakia_queue *queue);

// Submits `count` requests, which lie one after the other, and returns how many were accepted. Each of these
// has a last result, whatever happens; its `ticket` is filled in.
//
// Results of these requests that are there at once are stored in `results`, which has room for `count` of
// them, and their number in `*done`. The others come by `sakia_queue_take` or `sakia_queue_wait`, on any
// thread.
//
// If not all were accepted, the next one cannot be submitted: a call that begins with it returns the reason.
//
// Any thread; a signal handler may not call it. Errors, all but the second about the first request:
// `-EAGAIN` as many are under way as may be, so take results first; `-EFAULT` a null pointer; `-EINVAL` an
// operation, a flag or a size that is not known; `-EBADF` a file is missing; `-EPERM` a forked child. Owner:
// see `sakia_request`. Can break: memory that is freed, or a number that is closed, before the last result
// of its request was taken.
int64_t sakia_queue_submit(struct sakia_queue *queue,
                           struct sakia_request *requests,
                           size_t count,
                           struct sakia_result *results,
                           size_t *done);

// Stores results that are there in `results`, at most `room`, and returns their number, perhaps 0.
//
// Any thread; a signal handler may not call it. Makes no system call, unless there is a descriptor or
// another thread waits: a language calls it before it releases its lock for `sakia_queue_wait`. Errors:
// `-EINVAL` no room, `-EFAULT` a null pointer, `-EPERM` a forked child. Owner: the memory of a request is
// the program's again once its last result was taken.
int64_t sakia_queue_take(struct sakia_queue *queue,
                         struct sakia_result *results,
                         size_t room);

// Waits for a result if there is none, and stores results as `sakia_queue_take`. It waits at most
// `timeout_ns` nanoseconds; for ever if that is negative, and not at all if it is 0. Returns the number of
// results; 0 after a signal, after a wake, when the time is over, or if another thread was quicker.
//
// Any thread; several share the results. Errors: as `sakia_queue_take`; `-EIO` a thread of the queue has
// failed, so that requests will not end.
int64_t sakia_queue_wait(struct sakia_queue *queue,
                         struct sakia_result *results,
                         size_t room,
                         int64_t timeout_ns);

// Requests that the request with this ticket be canceled. Its result comes in any case: its value, if it was
// quicker, or `-ECANCELED`. A ticket whose request has ended names nothing; one of another queue may name a
// request of this one.
//
// Any thread; a signal handler may not call it. Errors: `-EPERM` a forked child; `-EFAULT` null.
int32_t sakia_queue_cancel(struct sakia_queue *queue,
                           uint64_t ticket);

// Returns the number of requests whose last result was not taken.
//
// Any thread. Errors: as `sakia_queue_cancel`.
int64_t sakia_queue_under_way(struct sakia_queue *queue);

// Returns a new descriptor that is readable while there are results to take, or a wake has come that no wait
// has seen, for a foreign event loop to poll, level-triggered.
//
// Any thread. Owner: the program closes the descriptor, before or after the queue. Errors: `-EMFILE`,
// `-ENFILE` none is left, and as `sakia_queue_cancel`.
int32_t sakia_queue_pollable(struct sakia_queue *queue);

// Stores in `*waker` a handle that ends waits for the queue: that of one thread, or the next one.
//
// Any thread. Owner: `sakia_waker_free` gives it back, before or after the queue's end. Errors: as
// `sakia_queue_cancel`.
int32_t sakia_queue_waker(struct sakia_queue *queue, struct sakia_waker **waker);

// Returns why the queue runs on epoll and threads, not on rings; null if it has rings, or after an error.
//
// Any thread. Owner: the text is the queue's, and valid until it is freed.
const char *sakia_queue_why_no_ring(struct sakia_queue *queue);

// Ends the queue for all threads: cancels what is under way, and waits at most `limit_ns` nanoseconds, or
// for ever if that is negative, for it to end. Results of what has ended can still be taken; later requests
// end with `-ECANCELED`.
//
// Returns the number of requests that did not end, and stores the tokens of up to `room` of them in
// `leaked`, which may be null if `room` is 0. The kernel may use their memory for ever: it must stay as it
// is.
//
// Any thread. Errors: `-EFAULT` a null pointer, and as `sakia_queue_cancel`. May be called again, for more
// tokens.
int64_t sakia_queue_stop(struct sakia_queue *queue,
                         int64_t limit_ns,
                         uint64_t *leaked,
                         size_t room);

// Begins to copy the tree `from` to `to`, on threads of the library, and stores it in `*tree`. The paths are
// copied. `to` is the copy itself, not a directory for it. `options` may be null: contents and permissions,
// as `cp -r`.
//
// Any thread. Errors: `-EINVAL` options that are not known; `-EFAULT` a null pointer; `-EAGAIN` no thread,
// `-EMFILE`, `-ENFILE`, `-ENOMEM`. Those of the copy are told by `sakia_tree_failure` and
// `sakia_tree_wait`. Can break: a path without a zero at its end.
int32_t sakia_copy_tree(const char *from,
                        const char *to,
                        const struct sakia_tree_options *options,
                        struct sakia_tree **tree);

// Begins to remove the tree `path`, on threads of the library, and stores it in `*tree`. No link is
// followed. `options` may be null; it has no flags.
//
// Any thread. Errors: as `sakia_copy_tree`.
int32_t sakia_remove_tree(const char *path,
                          const struct sakia_tree_options *options,
                          struct sakia_tree **tree);

// Stores the counts so far in `*counts`, of which the program has `size` bytes.
//
// Any thread. Errors: `-EFAULT` a null pointer, `-EINVAL` a size that is not known, `-EPERM` a forked child.
int32_t sakia_tree_counts(const struct sakia_tree *tree,
                          struct sakia_counts *counts,
                          size_t size);

// Takes a failure, oldest first, and stores it in `*failure`. Returns 1; 0 if there is none at the moment.
//
// One thread at a time. Owner: the texts are the tree's, and valid until the next call, or the tree is
// freed. Errors: `-EFAULT` a null pointer, `-EPERM` a forked child.
int32_t sakia_tree_failure(const struct sakia_tree *tree,
                           struct sakia_failure *failure);

// Waits for the end of the work, at most `timeout_ns` nanoseconds; for ever if that is negative, and not at
// all if it is 0. Returns 1 if all is done, and 0 if the work goes on.
//
// Any thread. Errors: `-EREMOTEIO` some entries failed, see `sakia_tree_failure`; `-ECANCELED` it was
// canceled, or stopped since the destination is full; others if it could not begin; `-EFAULT` null, `-EPERM`
// a forked child.
int32_t sakia_tree_wait(const struct sakia_tree *tree,
                        int64_t timeout_ns);

// Returns a new descriptor that becomes readable at the end of the work, for an event loop.
//
// Any thread. Owner: the program closes it, before or after the tree. Errors: `-EMFILE`, `-ENFILE` none is
// left; `-EFAULT` null, `-EPERM` a forked child.
int32_t sakia_tree_pollable(const struct sakia_tree *tree);

// Stops the work: entries in progress are completed or removed. Returns at once.
//
// Any thread; a signal handler may not call it. Errors: `-EFAULT` null, `-EPERM` a forked child.
int32_t sakia_tree_cancel(const struct sakia_tree *tree);

// Cancels the work if it goes on, waits for its end, and frees the tree; nothing for null.
//
// Any thread, while no other call on the tree is running. Errors: `-EPERM` a forked child; then nothing is
// freed. Can break: a later use of the tree.
int32_t sakia_tree_free(struct sakia_tree *tree);

// Adds a reference, and returns `waker`; null for null.
//
// Any thread. Never fails. Can break: a waker without a reference left.
struct sakia_waker *sakia_waker_clone(struct sakia_waker *waker);

// Ends the loop's wait, or that of one thread that waits for the queue, or the next one; nothing for null,
// after the end of either, and in a forked child. Takes no lock, allocates nothing and keeps `errno`.
//
// Any thread, signal handlers and finalizers too. Never fails. Can break: a waker without a reference left.
// Kernel: one system call or two; none if an earlier wake was not seen.
void sakia_waker_wake(const struct sakia_waker *waker);

// Gives a reference back; nothing for null.
//
// Any thread; a signal handler may not call it. Never fails. Can break: a reference that is given back
// twice.
void sakia_waker_free(struct sakia_waker *waker);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SAKIA_H */
