/* Calls of libsakia for the scheduler of one domain.
 *
 * A loop is used on its domain's thread. Its block is freed by `eio_sakia_stop` alone: a finalizer may run on
 * any domain, and frees no loop.
 *
 * A submission answers with the request's result if that is there, else with PENDING. Files are numbers here,
 * since eio's `Fd` owns numbers; it keeps each open until the request's result was taken.
 */
#define _GNU_SOURCE
#include "common.h"

#include <caml/custom.h>
#include <caml/fail.h>
#include <caml/memory.h>
#include <caml/signals.h>
#include <caml/socketaddr.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Answers of a submission that are no results: neither bytes nor an error number has these values. */
#define PENDING (-100000)
#define FULL (-100001)

#define RESULTS 64

/* More bytes are moved with the runtime lock released: it holds up the collectors of all domains. */
#define LOCKED_BYTES (32 << 10)

struct eio_loop {
    sakia_loop *loop;
    /* The ticket of the request with a token; the scheduler's tokens are small. */
    uint64_t *tickets;
    size_t capacity;
    /* Results of earlier requests that a submission brought. */
    sakia_result *early;
    size_t early_count, early_room;
    sakia_result results[RESULTS];
    sigset_t all;
};

#define Loop(v) (*(struct eio_loop **) Data_custom_val(v))

/* The loop's waker for other threads, which may come after the loop's end: then it is given back already, so
 * that no descriptor waits for the collector. `users` counts the loop and calls under way; at 0 the waker is
 * gone. */
struct eio_waker {
    sakia_waker *waker;
    atomic_long users;
};

#define Waker(v) (*(struct eio_waker **) Data_custom_val(v))

static struct custom_operations loop_operations = {
    .identifier = "sakia.eio.loop",
    .finalize = custom_finalize_default,
};

static bool use_waker(struct eio_waker *it) {
    long users = atomic_load(&it->users);

    while (users > 0)
        if (atomic_compare_exchange_weak(&it->users, &users, users + 1))
            return true;
    return false;
}

static void leave_waker(struct eio_waker *it) {
    if (atomic_fetch_sub(&it->users, 1) == 1)
        sakia_waker_free(it->waker);
}

static void waker_finalize(value v) {
    struct eio_waker *it = Waker(v);

    if (atomic_load(&it->users) > 0)
        sakia_waker_free(it->waker);
    free(it);
}

static struct custom_operations waker_operations = {
    .identifier = "sakia.eio.waker",
    .finalize = waker_finalize,
};

/* ---- The loop ---- */

CAMLprim value eio_sakia_loop(value under_way_max) {
    CAMLparam1(under_way_max);
    CAMLlocal1(result);
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    struct eio_loop *it = calloc(1, sizeof *it);

    if (it == NULL)
        caml_raise_out_of_memory();
    options.under_way_max = (uint32_t) Long_val(under_way_max);
    int error = sakia_loop_new(&options, &it->loop);
    if (error < 0) {
        free(it);
        fail_with(error, "sakia_loop_new");
    }
    sigfillset(&it->all);
    /* Signals that the machine raises in a thread cannot wait. */
    sigdelset(&it->all, SIGSEGV);
    sigdelset(&it->all, SIGBUS);
    sigdelset(&it->all, SIGFPE);
    sigdelset(&it->all, SIGILL);
    result = caml_alloc_custom(&loop_operations, sizeof(struct eio_loop *), 0, 1);
    Loop(result) = it;
    CAMLreturn(result);
}

CAMLprim value eio_sakia_waker(value loop) {
    CAMLparam1(loop);
    CAMLlocal1(result);
    struct eio_waker *it = calloc(1, sizeof *it);

    if (it == NULL)
        caml_raise_out_of_memory();
    int error = sakia_loop_waker(Loop(loop)->loop, &it->waker);
    if (error < 0) {
        free(it);
        fail_with(error, "sakia_loop_waker");
    }
    atomic_init(&it->users, 1);
    result = caml_alloc_custom(&waker_operations, sizeof(struct eio_waker *), 0, 1);
    Waker(result) = it;
    CAMLreturn(result);
}

CAMLprim value eio_sakia_wake(value waker) {
    struct eio_waker *it = Waker(waker);

    if (use_waker(it)) {
        sakia_waker_wake(it->waker);
        leave_waker(it);
    }
    return Val_unit;
}

/* The loop ends. */
CAMLprim value eio_sakia_leave_waker(value waker) {
    leave_waker(Waker(waker));
    return Val_unit;
}

/* Its answer is empty if there is a ring. */
CAMLprim value eio_sakia_why_no_ring(value loop) {
    const char *why = sakia_why_no_ring(Loop(loop)->loop);
    return caml_copy_string(why == NULL ? "" : why);
}

/* Returns a number for a result's file, which is the program's to close. */
static int64_t number_of(sakia_file *file) {
    int number = sakia_file_release(file);

    if (number < 0) {
        number = fcntl(sakia_file_number(file), F_DUPFD_CLOEXEC, 0);
        number = number < 0 ? -errno : number;
        sakia_file_unref(file);
    }
    return number;
}

static int64_t value_of(const sakia_result *result) {
    return result->file != NULL ? number_of(result->file) : result->value;
}

/* Writes tokens and values to the scheduler's memory, 16 bytes each. */
static value tell(unsigned char *to, const sakia_result *results, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t token = (int64_t) results[i].token, value = value_of(&results[i]);
        memcpy(to + 16 * i, &token, 8);
        memcpy(to + 16 * i + 8, &value, 8);
    }
    return Val_long(count);
}

static value tell_early(struct eio_loop *it, value to) {
    size_t count = it->early_count < RESULTS ? it->early_count : RESULTS;

    it->early_count -= count;
    return tell(Bytes_val(to), it->early + it->early_count, (int64_t) count);
}

/* Stores what is there, without a system call. */
CAMLprim value eio_sakia_take(value loop, value to) {
    struct eio_loop *it = Loop(loop);

    if (it->early_count > 0)
        return tell_early(it, to);
    int64_t count = sakia_loop_take(it->loop, it->results, RESULTS);
    return tell(Bytes_val(to), it->results, count < 0 ? 0 : count);
}

/* Submits and waits, with the runtime lock released. A handler of OCaml's runs after the wait, so a signal
 * that comes between the look for signals and the sleep would be left until something else happens. With
 * `guarded` the thread blocks its signals before that look, and lets them in while it sleeps; that takes
 * three system calls more. */
CAMLprim value eio_sakia_wait(value loop, value to, value v_timeout, value v_guarded) {
    CAMLparam2(loop, to);
    struct eio_loop *it = Loop(loop);
    int64_t timeout = Long_val(v_timeout), count = 0;
    bool guarded = Bool_val(v_guarded);
    sigset_t old;

    if (it->early_count > 0)
        CAMLreturn(tell_early(it, to));
    if (guarded)
        pthread_sigmask(SIG_BLOCK, &it->all, &old);
    if (timeout == 0 || !caml_check_pending_actions()) {
        caml_enter_blocking_section_no_pending();
        count = guarded ? sakia_loop_wait_masked(it->loop, it->results, RESULTS, timeout, &old)
                        : sakia_loop_wait(it->loop, it->results, RESULTS, timeout);
        caml_leave_blocking_section();
    }
    if (guarded)
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (count < 0)
        fail_with(count, "sakia_loop_wait");
    CAMLreturn(tell(Bytes_val(to), it->results, count));
}

CAMLprim value eio_sakia_cancel(value loop, intnat token) {
    struct eio_loop *it = Loop(loop);
    /* A result that is there wins. A fiber that outlived its loop has nothing under way. */
    if (it != NULL && it->tickets[token] != 0)
        sakia_loop_cancel(it->loop, it->tickets[token]);
    return Val_unit;
}

CAMLprim value eio_sakia_cancel_byte(value loop, value token) {
    return eio_sakia_cancel(loop, Long_val(token));
}

/* Ends and frees the loop, and returns the tokens of requests that did not end: the kernel may use their
 * memory for ever. */
CAMLprim value eio_sakia_stop(value loop, value v_limit) {
    CAMLparam1(loop);
    CAMLlocal1(result);
    struct eio_loop *it = Loop(loop);
    int64_t limit = Long_val(v_limit), count, left;
    size_t room = 0;
    uint64_t *leaked = NULL;

    caml_enter_blocking_section();
    left = sakia_loop_stop(it->loop, limit, NULL, 0);
    if (left > 0 && (leaked = calloc((size_t) left, sizeof *leaked)) != NULL) {
        room = (size_t) left;
        left = sakia_loop_stop(it->loop, 0, leaked, room);
        if (left >= 0 && (size_t) left < room)
            room = (size_t) left;
    }
    for (size_t i = 0; i < it->early_count; i++)
        sakia_file_unref(it->early[i].file);
    while ((count = sakia_loop_take(it->loop, it->results, RESULTS)) > 0)
        for (int64_t i = 0; i < count; i++)
            sakia_file_unref(it->results[i].file);
    sakia_loop_free(it->loop);
    caml_leave_blocking_section();
    result = caml_alloc(room, 0);
    for (size_t i = 0; i < room; i++)
        Store_field(result, i, Val_long(leaked[i]));
    free(leaked);
    free(it->early);
    free(it->tickets);
    free(it);
    Loop(loop) = NULL;
    CAMLreturn(result);
}

/* ---- Submissions ---- */

static bool has_room(struct eio_loop *it, size_t token) {
    if (token < it->capacity)
        return true;
    size_t capacity = it->capacity == 0 ? 64 : it->capacity;
    while (capacity <= token)
        capacity *= 2;
    uint64_t *tickets = realloc(it->tickets, capacity * sizeof *tickets);
    if (tickets == NULL)
        return false;
    it->tickets = tickets;
    it->capacity = capacity;
    return true;
}

/* Keeps the result of another request for the next look. */
static bool keep_early(struct eio_loop *it, const sakia_result *result) {
    if (it->early_count == it->early_room) {
        size_t room = it->early_room == 0 ? 16 : 2 * it->early_room;
        sakia_result *early = realloc(it->early, room * sizeof *early);
        if (early == NULL)
            return false;
        it->early = early;
        it->early_room = room;
    }
    it->early[it->early_count++] = *result;
    return true;
}

static int64_t submit(struct eio_loop *it, sakia_request *request, int64_t token) {
    sakia_result result;
    size_t done = 0;

    if (!has_room(it, (size_t) token))
        return -ENOMEM;
    request->token = (uint64_t) token;
    int64_t count = sakia_loop_submit(it->loop, request, 1, &result, &done);
    if (count < 0)
        return count == -EAGAIN ? FULL : count;
    it->tickets[token] = request->ticket;
    if (done == 0)
        return PENDING;
    if (result.token == (uint64_t) token)
        return value_of(&result);
    /* It was that of an earlier one; this one's comes by a look. */
    if (!keep_early(it, &result))
        abort();
    return PENDING;
}

/* Names the file; a negative number is the working directory. */
static void on(sakia_request *request, int64_t fd) {
    if (fd >= 0) {
        request->options |= SAKIA_BY_FD;
        request->fd = (int32_t) fd;
    }
}

static void on2(sakia_request *request, int64_t fd) {
    if (fd >= 0) {
        request->options |= SAKIA_BY_FD2;
        request->fd2 = (int32_t) fd;
    }
}

static sakia_request moving(int64_t op, int64_t fd, value buffer, int64_t from, int64_t len, int64_t offset) {
    sakia_request request = {0};

    request.op = (uint32_t) op;
    on(&request, fd);
    request.buf = (char *) Caml_ba_data_val(buffer) + from;
    request.len = (size_t) len;
    /* Sends and receives have no offset. */
    if (op < SAKIA_OP_SEND)
        request.offset = offset < 0 ? SAKIA_CURRENT_POSITION : (uint64_t) offset;
    return request;
}

/* Reads, writes, sends or receives up to 32 KiB. */
intnat eio_sakia_move(value loop, intnat op, intnat fd, value buffer, intnat from, intnat len, intnat offset,
                      intnat token) {
    sakia_request request = moving(op, fd, buffer, from, len, offset);
    return submit(Loop(loop), &request, token);
}

CAMLprim value eio_sakia_move_byte(value *v, int count) {
    (void) count;
    return Val_long(eio_sakia_move(v[0], Long_val(v[1]), Long_val(v[2]), v[3], Long_val(v[4]), Long_val(v[5]),
                                   Long_val(v[6]), Long_val(v[7])));
}

/* The same for more bytes, with the runtime lock released. */
CAMLprim value eio_sakia_move_much(value loop, value op, value fd, value buffer, value from, value len,
                                   value offset, value token) {
    CAMLparam2(loop, buffer);
    struct eio_loop *it = Loop(loop);
    sakia_request request =
        moving(Long_val(op), Long_val(fd), buffer, Long_val(from), Long_val(len), Long_val(offset));

    caml_enter_blocking_section_no_pending();
    int64_t result = submit(it, &request, Long_val(token));
    caml_leave_blocking_section();
    CAMLreturn(Val_long(result));
}

CAMLprim value eio_sakia_move_much_byte(value *v, int count) {
    (void) count;
    return eio_sakia_move_much(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

/* Reads into or writes from several buffers. */
CAMLprim value eio_sakia_move_parts(value loop, value op, value fd, value list, value offset, value token) {
    CAMLparam2(loop, list);
    struct eio_loop *it = Loop(loop);
    struct iovec parts[PARTS];
    size_t bytes;
    sakia_request request = {0};
    int64_t at = Long_val(offset), result;

    request.op = (uint32_t) Long_val(op);
    on(&request, Long_val(fd));
    request.buf = parts;
    request.len = parts_of(list, parts, &bytes);
    request.offset = at < 0 ? SAKIA_CURRENT_POSITION : (uint64_t) at;
    if (bytes <= LOCKED_BYTES) {
        result = submit(it, &request, Long_val(token));
    } else {
        caml_enter_blocking_section_no_pending();
        result = submit(it, &request, Long_val(token));
        caml_leave_blocking_section();
    }
    CAMLreturn(Val_long(result));
}

CAMLprim value eio_sakia_move_parts_byte(value *v, int count) {
    (void) count;
    return eio_sakia_move_parts(v[0], v[1], v[2], v[3], v[4], v[5]);
}

/* An operation on a file, without memory. */
intnat eio_sakia_file(value loop, intnat op, intnat fd, intnat flags, intnat offset, intnat token) {
    sakia_request request = {0};

    request.op = (uint32_t) op;
    on(&request, fd);
    request.flags = (uint32_t) flags;
    request.offset = (uint64_t) offset;
    return submit(Loop(loop), &request, token);
}

CAMLprim value eio_sakia_file_byte(value *v, int count) {
    (void) count;
    return Val_long(eio_sakia_file(v[0], Long_val(v[1]), Long_val(v[2]), Long_val(v[3]), Long_val(v[4]),
                                   Long_val(v[5])));
}

/* An operation on a name; the path is copied by the submission. */
intnat eio_sakia_name(value loop, intnat op, intnat fd, value path, intnat flags, intnat mode,
                      intnat offset2, intnat token) {
    sakia_request request = {0};

    request.op = (uint32_t) op;
    on(&request, fd);
    request.path = String_val(path);
    request.flags = (uint32_t) flags;
    request.arg[0] = (uint32_t) mode;
    request.offset2 = (uint64_t) offset2;
    return submit(Loop(loop), &request, token);
}

CAMLprim value eio_sakia_name_byte(value *v, int count) {
    (void) count;
    return Val_long(eio_sakia_name(v[0], Long_val(v[1]), Long_val(v[2]), v[3], Long_val(v[4]), Long_val(v[5]),
                                   Long_val(v[6]), Long_val(v[7])));
}

/* An operation on two names. */
intnat eio_sakia_names(value loop, intnat op, intnat fd, value path, intnat fd2, value path2, intnat token) {
    sakia_request request = {0};

    request.op = (uint32_t) op;
    on(&request, fd);
    on2(&request, fd2);
    request.path = String_val(path);
    request.path2 = String_val(path2);
    return submit(Loop(loop), &request, token);
}

CAMLprim value eio_sakia_names_byte(value *v, int count) {
    (void) count;
    return Val_long(eio_sakia_names(v[0], Long_val(v[1]), Long_val(v[2]), v[3], Long_val(v[4]), v[5],
                                    Long_val(v[6])));
}

/* An operation on a name that fills memory. With an empty path, on the file itself. */
intnat eio_sakia_fill(value loop, intnat op, intnat fd, value path, intnat flags, value buffer,
                      intnat token) {
    sakia_request request = {0};

    request.op = (uint32_t) op;
    on(&request, fd);
    request.path = caml_string_length(path) == 0 ? NULL : String_val(path);
    request.flags = (uint32_t) flags;
    request.buf = Caml_ba_data_val(buffer);
    request.len = caml_ba_byte_size(Caml_ba_array_val(buffer));
    return submit(Loop(loop), &request, token);
}

CAMLprim value eio_sakia_fill_byte(value *v, int count) {
    (void) count;
    return Val_long(eio_sakia_fill(v[0], Long_val(v[1]), Long_val(v[2]), v[3], Long_val(v[4]), v[5],
                                   Long_val(v[6])));
}

/* Copies within the kernel, with the runtime lock released. */
CAMLprim value eio_sakia_copy(value loop, value from, value from_offset, value to, value to_offset, value len,
                              value token) {
    CAMLparam1(loop);
    struct eio_loop *it = Loop(loop);
    sakia_request request = {0};

    request.op = SAKIA_OP_COPY_RANGE;
    on(&request, Long_val(from));
    on2(&request, Long_val(to));
    request.offset = (uint64_t) Long_val(from_offset);
    request.offset2 = (uint64_t) Long_val(to_offset);
    request.len = (size_t) Long_val(len);
    caml_enter_blocking_section_no_pending();
    int64_t result = submit(it, &request, Long_val(token));
    caml_leave_blocking_section();
    CAMLreturn(Val_long(result));
}

CAMLprim value eio_sakia_copy_byte(value *v, int count) {
    (void) count;
    return eio_sakia_copy(v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
}

/* Connects; the address is copied by the submission. */
CAMLprim value eio_sakia_connect(value loop, value fd, value address, value token) {
    CAMLparam2(loop, address);
    union sock_addr_union to;
    socklen_param_type len;
    sakia_request request = {0};

    caml_unix_get_sockaddr(address, &to, &len);
    request.op = SAKIA_OP_CONNECT;
    on(&request, Long_val(fd));
    request.buf = &to;
    request.len = len;
    CAMLreturn(Val_long(submit(Loop(loop), &request, Long_val(token))));
}
