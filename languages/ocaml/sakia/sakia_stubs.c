/* The C side of the OCaml library on sakia.h. Three kinds of functions:
 *
 * - Those that OCaml declares noalloc neither allocate, raise nor wait, and move at most 32 KiB. They return
 *   negative error numbers, and OCaml code raises.
 * - Those that may wait, or move more, release the runtime lock. What they use of the OCaml heap they copy
 *   first; memory of bigarrays does not move, and the bigarray is rooted.
 * - Finalizers give references back, which any thread may do. A loop is never freed by one.
 *
 * A loop's handle is looked at by its own thread only: others are turned away by the thread's mark in the
 * wrapper, before they touch memory that the owner may free at the same time. */

#define _GNU_SOURCE
#define CAML_NAME_SPACE
#include <caml/alloc.h>
#include <caml/bigarray.h>
#include <caml/custom.h>
#include <caml/fail.h>
#include <caml/memory.h>
#include <caml/mlvalues.h>
#include <caml/signals.h>
#include <caml/unixsupport.h>
#include <caml/version.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sakia.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#if OCAML_VERSION >= 50000
#define error_of_code caml_unix_error_of_code
#else
#define error_of_code unix_error_of_code
#endif

/* The layout of results, which OCaml reads by itself. */
_Static_assert(sizeof(sakia_result) == 48, "result");
_Static_assert(offsetof(sakia_result, token) == 0, "token");
_Static_assert(offsetof(sakia_result, value) == 8, "value");
_Static_assert(offsetof(sakia_result, file) == 16, "file");
_Static_assert(offsetof(sakia_result, flags) == 24, "flags");
_Static_assert(offsetof(sakia_result, memory) == 32, "memory");
_Static_assert(offsetof(sakia_result, lent) == 40, "lent");

#define MAX_SLICES 1024
#define MAX_CONTROL_FDS 253

/* ---- errors ---- */

value sakia_ml_error_of_code(value code) { return error_of_code(Int_val(code)); }

/* ---- files ---- */

#define File_val(v) (*(sakia_file **)Data_custom_val(v))

static void file_finalize(value v) { sakia_file_unref(File_val(v)); }

static struct custom_operations file_operations = {
    "org.sakia.file",           file_finalize,
    custom_compare_default,     custom_hash_default,
    custom_serialize_default,   custom_deserialize_default,
    custom_compare_ext_default, custom_fixed_length_default,
};

/* Makes room for a handle before there is one: an allocation may raise. */
static value file_alloc(void) {
    value v = caml_alloc_custom_mem(&file_operations, sizeof(sakia_file *), 256);
    File_val(v) = NULL;
    return v;
}

/* `null` stands for no file: the integer 0. */
static sakia_file *file_or_null(value v) { return Is_long(v) ? NULL : File_val(v); }

value sakia_ml_file_none(value unit) { return file_alloc(); }

value sakia_ml_file_adopt(value file, value fd) {
    return Val_int(sakia_file_adopt(Int_val(fd), &File_val(file)));
}

value sakia_ml_file_lend(value file, value fd) {
    return Val_int(sakia_file_lend(Int_val(fd), &File_val(file)));
}

value sakia_ml_file_duplicate(value file, value fd) {
    return Val_int(sakia_file_duplicate(Int_val(fd), &File_val(file)));
}

value sakia_ml_file_number(value file) { return Val_int(sakia_file_number(File_val(file))); }

/* Moves the file of a result, whose address OCaml has read, into a handle. */
value sakia_ml_file_take(value file, value results, intnat index) {
    sakia_result *result = (sakia_result *)Caml_ba_data_val(results) + index;
    File_val(file) = result->file;
    result->file = NULL;
    return Val_unit;
}

value sakia_ml_file_take_byte(value file, value results, value index) {
    return sakia_ml_file_take(file, results, Long_val(index));
}

/* Gives back the file of a result that found no handle. */
value sakia_ml_file_drop(value results, intnat index) {
    sakia_result *result = (sakia_result *)Caml_ba_data_val(results) + index;
    sakia_file_unref(result->file);
    result->file = NULL;
    return Val_unit;
}

value sakia_ml_file_drop_byte(value results, value index) {
    return sakia_ml_file_drop(results, Long_val(index));
}

/* ---- calls that never wait ---- */

static uint64_t offset_of(intnat offset) { return offset < 0 ? SAKIA_CURRENT_POSITION : (uint64_t)offset; }

#define TRY(name, type, call, last)                                                                          \
    intnat sakia_ml_##name(value file, value memory, intnat pos, intnat len, intnat last) {                  \
        type *data = (type *)Caml_ba_data_val(memory) + pos;                                                 \
        return call;                                                                                         \
    }                                                                                                        \
    value sakia_ml_##name##_byte(value file, value memory, value pos, value len, value last) {               \
        return Val_long(sakia_ml_##name(file, memory, Long_val(pos), Long_val(len), Long_val(last)));        \
    }                                                                                                        \
    value sakia_ml_##name##_large(value file_v, value memory, value pos, value len_v, value last_v) {        \
        CAMLparam2(file_v, memory);                                                                          \
        type *data = (type *)Caml_ba_data_val(memory) + Long_val(pos);                                       \
        intnat len = Long_val(len_v), last = Long_val(last_v), result;                                       \
        sakia_file *handle = File_val(file_v);                                                               \
        caml_enter_blocking_section();                                                                       \
        result = sakia_##name(handle, data, len, TRY_LAST_##name(last));                                     \
        caml_leave_blocking_section();                                                                       \
        CAMLreturn(Val_long(result));                                                                        \
    }

#define TRY_LAST_try_read(it) offset_of(it)
#define TRY_LAST_try_write(it) offset_of(it)
#define TRY_LAST_try_recv(it) (uint32_t)(it)
#define TRY_LAST_try_send(it) (uint32_t)(it)

TRY(try_read, uint8_t, sakia_try_read(File_val(file), data, len, offset_of(offset)), offset)
TRY(try_write, const uint8_t, sakia_try_write(File_val(file), data, len, offset_of(offset)), offset)
TRY(try_recv, uint8_t, sakia_try_recv(File_val(file), data, len, (uint32_t)flags), flags)
TRY(try_send, const uint8_t, sakia_try_send(File_val(file), data, len, (uint32_t)flags), flags)

/* Bytes of OCaml's own heap, which does not move as long as the lock is held. */
#define TRY_BYTES(name, type, last)                                                                          \
    intnat sakia_ml_##name##_bytes(value file, value bytes, intnat pos, intnat len, intnat last) {           \
        return sakia_##name(File_val(file), (type *)Bytes_val(bytes) + pos, len, TRY_LAST_##name(last));     \
    }                                                                                                        \
    value sakia_ml_##name##_bytes_byte(value file, value bytes, value pos, value len, value last) {          \
        return Val_long(sakia_ml_##name##_bytes(file, bytes, Long_val(pos), Long_val(len), Long_val(last))); \
    }

TRY_BYTES(try_read, uint8_t, offset)
TRY_BYTES(try_write, const uint8_t, offset)
TRY_BYTES(try_recv, uint8_t, flags)
TRY_BYTES(try_send, const uint8_t, flags)

/* A path of OCaml's, or null for one that is no C string. */
static const char *path_of(value path) {
    return strlen(String_val(path)) == caml_string_length(path) ? String_val(path) : NULL;
}

intnat sakia_ml_try_stat(value file, value path, intnat flags, value memory, intnat pos) {
    const char *name = NULL;
    if (Is_block(path) && !(name = path_of(path))) {
        return -ENOENT;
    }
    return sakia_try_stat(file_or_null(file), name, (uint32_t)flags, (char *)Caml_ba_data_val(memory) + pos,
                          256);
}

value sakia_ml_try_stat_byte(value file, value path, value flags, value memory, value pos) {
    return Val_long(sakia_ml_try_stat(file, path, Long_val(flags), memory, Long_val(pos)));
}

intnat sakia_ml_try_open(value directory, value path, intnat flags, intnat resolve, value file) {
    const char *name = path_of(path);
    if (!name) {
        return -ENOENT;
    }
    return sakia_try_open(file_or_null(directory), name, (uint32_t)flags, (uint64_t)resolve, &File_val(file));
}

value sakia_ml_try_open_byte(value directory, value path, value flags, value resolve, value file) {
    return Val_long(sakia_ml_try_open(directory, path, Long_val(flags), Long_val(resolve), file));
}

/* ---- requests ---- */

/* The fields of `Request.t`, in its order. */
enum field {
    F_NAME,
    F_OP,
    F_FILE,
    F_FD,
    F_MEMORY,
    F_POS,
    F_LEN,
    F_OFFSET,
    F_FLAGS,
    F_MORE, /* a record with the rest, or an integer */
};

enum more {
    M_FILE2,
    M_FD2,
    M_PATH,
    M_PATH2,
    M_ARG0,
    M_ARG1,
    M_ARG2,
    M_OFFSET2,
    M_DATA,    /* a string that takes the place of memory: an address, or times */
    M_SLICES,  /* an array of (memory, pos, len) */
    M_CONTROL, /* an array of descriptors to send */
};

/* What a request's pointers lead to while it is submitted, for what the library copies. */
struct room {
    struct iovec vectors[MAX_SLICES];
    struct msghdr message;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MAX_CONTROL_FDS * sizeof(int))];
    } control;
};

static void *memory_of(value memory, value pos) { return (char *)Caml_ba_data_val(memory) + Long_val(pos); }

static int64_t fill_slices(value slices, struct iovec *vectors) {
    mlsize_t count = Wosize_val(slices);
    if (count > MAX_SLICES) {
        return -EINVAL;
    }
    for (mlsize_t i = 0; i < count; i++) {
        value slice = Field(slices, i);
        vectors[i].iov_base = memory_of(Field(slice, 0), Field(slice, 1));
        vectors[i].iov_len = Long_val(Field(slice, 2));
    }
    return (int64_t)count;
}

/* The message to send: one buffer, an address or none, and descriptors or none. */
static int64_t fill_message(sakia_request *request, value more, struct room *room) {
    value data = Field(more, M_DATA), control = Field(more, M_CONTROL);
    struct msghdr *message = &room->message;
    memset(message, 0, sizeof *message);
    room->vectors[0].iov_base = request->buf;
    room->vectors[0].iov_len = request->len;
    message->msg_iov = room->vectors;
    message->msg_iovlen = 1;
    if (Is_block(data)) {
        message->msg_name = (void *)String_val(data);
        message->msg_namelen = caml_string_length(data);
    }
    if (Is_block(control) && Wosize_val(control) > 0) {
        mlsize_t count = Wosize_val(control);
        struct cmsghdr *header;
        if (count > MAX_CONTROL_FDS) {
            return -EINVAL;
        }
        memset(&room->control, 0, CMSG_SPACE(count * sizeof(int)));
        message->msg_control = &room->control;
        message->msg_controllen = CMSG_SPACE(count * sizeof(int));
        header = CMSG_FIRSTHDR(message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (mlsize_t i = 0; i < count; i++) {
            int fd = Int_val(Field(control, i));
            memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
        }
    }
    request->buf = message;
    request->len = sizeof *message;
    return 0;
}

static int64_t fill_more(sakia_request *request, value more, struct room *room) {
    int64_t outcome = 0;
    request->file2 = file_or_null(Field(more, M_FILE2));
    if (Int_val(Field(more, M_FD2)) >= 0) {
        request->fd2 = Int_val(Field(more, M_FD2));
        request->options |= SAKIA_BY_FD2;
    }
    if (Is_block(Field(more, M_PATH)) && !(request->path = path_of(Field(more, M_PATH)))) {
        return -ENOENT;
    }
    if (Is_block(Field(more, M_PATH2)) && !(request->path2 = path_of(Field(more, M_PATH2)))) {
        return -ENOENT;
    }
    request->arg[0] = (uint32_t)Long_val(Field(more, M_ARG0));
    request->arg[1] = (uint32_t)Long_val(Field(more, M_ARG1));
    request->arg[2] = (uint32_t)Long_val(Field(more, M_ARG2));
    request->offset2 = offset_of(Long_val(Field(more, M_OFFSET2)));
    if (request->op == SAKIA_OP_SEND_MESSAGE) {
        return fill_message(request, more, room);
    }
    if (Is_block(Field(more, M_DATA))) {
        request->buf = (void *)String_val(Field(more, M_DATA));
        /* Times have a size of their own. */
        request->len = request->op == SAKIA_OP_SET_TIMES ? 0 : caml_string_length(Field(more, M_DATA));
    }
    if (Is_block(Field(more, M_SLICES))) {
        outcome = fill_slices(Field(more, M_SLICES), room->vectors);
        request->buf = room->vectors;
        request->len = outcome < 0 ? 0 : (size_t)outcome;
    }
    return outcome < 0 ? outcome : 0;
}

static void fill_plain(sakia_request *request, value it, uint64_t token) {
    memset(request, 0, sizeof *request);
    request->op = (uint32_t)Long_val(Field(it, F_OP));
    request->token = token;
    request->file = file_or_null(Field(it, F_FILE));
    if (Int_val(Field(it, F_FD)) >= 0) {
        request->fd = Int_val(Field(it, F_FD));
        request->options = SAKIA_BY_FD;
    }
    if (Is_block(Field(it, F_MEMORY))) {
        request->buf = memory_of(Field(it, F_MEMORY), Field(it, F_POS));
        request->len = Long_val(Field(it, F_LEN));
    } else {
        request->len = Long_val(Field(it, F_LEN));
    }
    request->offset = offset_of(Long_val(Field(it, F_OFFSET)));
    request->flags = (uint32_t)Long_val(Field(it, F_FLAGS));
}

/* ---- loops ---- */

struct loop {
    sakia_loop *loop;  /* null once it is freed */
    const char *owner; /* the thread's mark */
    uint64_t *tickets; /* of the requests under way, by token */
    size_t room;       /* of `tickets` */
};

static __thread char mark;

#define Loop_val(v) (*(struct loop **)Data_custom_val(v))

/* A loop that was not freed stays: only its thread may free it. */
static void loop_finalize(value v) {
    struct loop *it = Loop_val(v);
    if (it && !it->loop) {
        free(it->tickets);
        free(it);
    }
}

static struct custom_operations loop_operations = {
    "org.sakia.loop",           loop_finalize,
    custom_compare_default,     custom_hash_default,
    custom_serialize_default,   custom_deserialize_default,
    custom_compare_ext_default, custom_fixed_length_default,
};

/* Why the calling thread may not use the loop, as an error number; 0 if it may. */
static int64_t loop_refusal(const struct loop *it) {
    if (it->owner != &mark) {
        return -EPERM;
    }
    return it->loop ? 0 : -EINVAL;
}

intnat sakia_ml_loop_refusal(value v) { return loop_refusal(Loop_val(v)); }

value sakia_ml_loop_refusal_byte(value v) { return Val_long(sakia_ml_loop_refusal(v)); }

value sakia_ml_loop_new(value under_way_max, value flags) {
    CAMLparam0();
    CAMLlocal1(v);
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    struct loop *it;
    int32_t error;
    v = caml_alloc_custom_mem(&loop_operations, sizeof(struct loop *), 65536);
    Loop_val(v) = NULL;
    it = calloc(1, sizeof *it);
    if (!it) {
        caml_raise_out_of_memory();
    }
    options.under_way_max = (uint32_t)Long_val(under_way_max);
    options.flags = (uint32_t)Long_val(flags);
    error = sakia_loop_new(&options, &it->loop);
    if (error < 0) {
        free(it);
        CAMLreturn(Val_int(error));
    }
    it->owner = &mark;
    Loop_val(v) = it;
    CAMLreturn(v);
}

/* Room for the tickets of `count` tokens. */
value sakia_ml_loop_room(value v, value count_v) {
    struct loop *it = Loop_val(v);
    size_t count = Long_val(count_v);
    uint64_t *tickets;
    if (it->owner != &mark) {
        return Val_int(-EPERM);
    }
    tickets = realloc(it->tickets, count * sizeof *tickets);
    if (!tickets) {
        return Val_int(-ENOMEM);
    }
    memset(tickets + it->room, 0, (count - it->room) * sizeof *tickets);
    it->tickets = tickets;
    it->room = count;
    return Val_int(0);
}

static int64_t loop_submit(struct loop *it, sakia_request *request) {
    int64_t count = sakia_loop_submit(it->loop, request, 1, NULL, NULL);
    if (count == 1) {
        it->tickets[request->token] = request->ticket;
        return request->ticket ? 1 : 0;
    }
    return count < 0 ? count : -EAGAIN;
}

/* Returns 1 if the request is under way, 0 if its result is there, or an error number. */
intnat sakia_ml_loop_submit(value v, intnat token, value it) {
    struct loop *loop = Loop_val(v);
    sakia_request request;
    int64_t refusal = loop_refusal(loop);
    if (refusal) {
        return refusal;
    }
    fill_plain(&request, it, (uint64_t)token);
    if (Is_block(Field(it, F_MORE))) {
        struct room room;
        refusal = fill_more(&request, Field(it, F_MORE), &room);
        return refusal ? refusal : loop_submit(loop, &request);
    }
    return loop_submit(loop, &request);
}

value sakia_ml_loop_submit_byte(value v, value token, value it) {
    return Val_long(sakia_ml_loop_submit(v, Long_val(token), it));
}

/* The same for much memory, which a plain call may fill: without the lock. It has no path. */
value sakia_ml_loop_submit_large(value v, value token, value it) {
    CAMLparam2(v, it);
    struct loop *loop = Loop_val(v);
    sakia_request request;
    struct room *room = NULL;
    int64_t outcome = loop_refusal(loop);
    if (outcome) {
        CAMLreturn(Val_long(outcome));
    }
    fill_plain(&request, it, (uint64_t)Long_val(token));
    if (Is_block(Field(it, F_MORE))) {
        room = malloc(sizeof *room);
        outcome = room ? fill_more(&request, Field(it, F_MORE), room) : -ENOMEM;
        if (outcome) {
            free(room);
            CAMLreturn(Val_long(outcome));
        }
    }
    caml_enter_blocking_section_no_pending();
    outcome = loop_submit(loop, &request);
    caml_leave_blocking_section();
    free(room);
    CAMLreturn(Val_long(outcome));
}

intnat sakia_ml_loop_take(value v, value results, intnat room) {
    struct loop *loop = Loop_val(v);
    int64_t refusal = loop_refusal(loop);
    return refusal ? refusal : sakia_loop_take(loop->loop, (sakia_result *)Caml_ba_data_val(results), room);
}

value sakia_ml_loop_take_byte(value v, value results, value room) {
    return Val_long(sakia_ml_loop_take(v, results, Long_val(room)));
}

/* A wait that does not wait: it submits, and looks. */
intnat sakia_ml_loop_poll(value v, value results, intnat room) {
    struct loop *loop = Loop_val(v);
    int64_t refusal = loop_refusal(loop);
    return refusal ? refusal
                   : sakia_loop_wait(loop->loop, (sakia_result *)Caml_ba_data_val(results), room, 0);
}

value sakia_ml_loop_poll_byte(value v, value results, value room) {
    return Val_long(sakia_ml_loop_poll(v, results, Long_val(room)));
}

value sakia_ml_loop_wait(value v, value results, value room_v, value timeout) {
    CAMLparam2(v, results);
    struct loop *loop = Loop_val(v);
    sakia_result *data = (sakia_result *)Caml_ba_data_val(results);
    int64_t limit = Long_val(timeout), count = loop_refusal(loop);
    size_t room = Long_val(room_v);
    if (count) {
        CAMLreturn(Val_long(count));
    }
    caml_enter_blocking_section();
    /* A signal's handler has perhaps just freed the loop. */
    count = loop_refusal(loop);
    if (!count) {
        count = sakia_loop_wait(loop->loop, data, room, limit);
    }
    caml_leave_blocking_section();
    CAMLreturn(Val_long(count));
}

intnat sakia_ml_loop_cancel(value v, intnat token) {
    struct loop *loop = Loop_val(v);
    int64_t refusal = loop_refusal(loop);
    if (refusal) {
        return refusal;
    }
    return loop->tickets[token] ? sakia_loop_cancel(loop->loop, loop->tickets[token]) : 0;
}

value sakia_ml_loop_cancel_byte(value v, value token) {
    return Val_long(sakia_ml_loop_cancel(v, Long_val(token)));
}

intnat sakia_ml_loop_under_way(value v) {
    struct loop *loop = Loop_val(v);
    int64_t refusal = loop_refusal(loop);
    return refusal ? refusal : sakia_loop_under_way(loop->loop);
}

value sakia_ml_loop_under_way_byte(value v) { return Val_long(sakia_ml_loop_under_way(v)); }

value sakia_ml_loop_pollable(value v) {
    struct loop *loop = Loop_val(v);
    int64_t refusal = loop_refusal(loop);
    return Val_long(refusal ? refusal : sakia_loop_pollable(loop->loop));
}

value sakia_ml_loop_why_no_ring(value v) {
    struct loop *loop = Loop_val(v);
    const char *why = loop_refusal(loop) ? NULL : sakia_why_no_ring(loop->loop);
    return caml_copy_string(why ? why : "");
}

/* The address of received bytes is valid as long as OCaml code has them in its table. */
value sakia_ml_loop_received(value v, value memory, value pos, value bytes, value dst, value len) {
    struct loop *loop = Loop_val(v);
    int64_t refusal = loop_refusal(loop);
    if (!refusal) {
        memcpy((char *)Caml_ba_data_val(bytes) + Long_val(dst),
               (const char *)Nativeint_val(memory) + Long_val(pos), Long_val(len));
    }
    return Val_long(refusal);
}

value sakia_ml_loop_received_byte(value *argv, int argn) {
    (void)argn;
    return sakia_ml_loop_received(argv[0], argv[1], argv[2], argv[3], argv[4], argv[5]);
}

value sakia_ml_loop_give_back(value v, value lent) {
    struct loop *loop = Loop_val(v);
    int64_t refusal = loop_refusal(loop);
    return Val_long(refusal ? refusal : sakia_loop_give_back(loop->loop, (uint64_t)Int64_val(lent)));
}

/* Stores the tokens of up to `room` requests that did not end in `tokens`, a bigarray of 64-bit numbers. */
value sakia_ml_loop_stop(value v, value limit_v, value tokens, value room_v) {
    CAMLparam2(v, tokens);
    struct loop *loop = Loop_val(v);
    uint64_t *data = (uint64_t *)Caml_ba_data_val(tokens);
    int64_t limit = Long_val(limit_v), count = loop_refusal(loop);
    size_t room = Long_val(room_v);
    if (count) {
        CAMLreturn(Val_long(count));
    }
    caml_enter_blocking_section();
    count = loop_refusal(loop);
    if (!count) {
        count = sakia_loop_stop(loop->loop, limit, data, room);
    }
    caml_leave_blocking_section();
    CAMLreturn(Val_long(count));
}

value sakia_ml_loop_free(value v) {
    CAMLparam1(v);
    struct loop *loop = Loop_val(v);
    int64_t error = loop_refusal(loop);
    if (!error) {
        sakia_loop *handle = loop->loop;
        caml_enter_blocking_section_no_pending();
        error = sakia_loop_free(handle);
        caml_leave_blocking_section();
        if (error == 0) {
            loop->loop = NULL;
        }
    }
    CAMLreturn(Val_long(error));
}

/* ---- wakers ---- */

#define Waker_val(v) (*(sakia_waker **)Data_custom_val(v))

static void waker_finalize(value v) { sakia_waker_free(Waker_val(v)); }

static struct custom_operations waker_operations = {
    "org.sakia.waker",          waker_finalize,
    custom_compare_default,     custom_hash_default,
    custom_serialize_default,   custom_deserialize_default,
    custom_compare_ext_default, custom_fixed_length_default,
};

value sakia_ml_loop_waker(value v) {
    CAMLparam1(v);
    CAMLlocal1(waker);
    struct loop *loop = Loop_val(v);
    int64_t error = loop_refusal(loop);
    waker = caml_alloc_custom_mem(&waker_operations, sizeof(sakia_waker *), 64);
    Waker_val(waker) = NULL;
    if (!error) {
        error = sakia_loop_waker(loop->loop, &Waker_val(waker));
    }
    CAMLreturn(error < 0 ? Val_long(error) : waker);
}

value sakia_ml_waker_wake(value waker) {
    sakia_waker_wake(Waker_val(waker));
    return Val_unit;
}

/* ---- queues ---- */

#define Queue_val(v) (*(sakia_queue **)Data_custom_val(v))

/* A queue is rooted until it is stopped, so this does not wait for requests. */
static void queue_finalize(value v) { sakia_queue_free(Queue_val(v)); }

static struct custom_operations queue_operations = {
    "org.sakia.queue",          queue_finalize,
    custom_compare_default,     custom_hash_default,
    custom_serialize_default,   custom_deserialize_default,
    custom_compare_ext_default, custom_fixed_length_default,
};

value sakia_ml_queue_new(value under_way_max, value flags, value threads) {
    CAMLparam0();
    CAMLlocal1(v);
    sakia_queue_options options = SAKIA_QUEUE_OPTIONS;
    int32_t error;
    v = caml_alloc_custom_mem(&queue_operations, sizeof(sakia_queue *), 65536);
    Queue_val(v) = NULL;
    options.under_way_max = (uint32_t)Long_val(under_way_max);
    options.flags = (uint32_t)Long_val(flags);
    options.threads = (uint32_t)Long_val(threads);
    error = sakia_queue_new(&options, &Queue_val(v));
    CAMLreturn(error < 0 ? Val_int(error) : v);
}

/* The ticket, or a negative error number; 0 if the result is in `results`. Tickets of queues and results
 * that are there at once come back through `results`: `ticket` follows the first one. */
value sakia_ml_queue_submit(value v, value token, value it, value results, value large) {
    CAMLparam3(v, it, results);
    sakia_queue *queue = Queue_val(v);
    sakia_result *data = (sakia_result *)Caml_ba_data_val(results);
    sakia_request request;
    struct room *room = NULL;
    size_t done = 0;
    int64_t outcome;
    fill_plain(&request, it, (uint64_t)Long_val(token));
    if (Is_block(Field(it, F_MORE))) {
        room = malloc(sizeof *room);
        outcome = room ? fill_more(&request, Field(it, F_MORE), room) : -ENOMEM;
        if (outcome) {
            free(room);
            CAMLreturn(Val_long(outcome));
        }
    }
    if (Bool_val(large)) {
        caml_enter_blocking_section_no_pending();
        outcome = sakia_queue_submit(queue, &request, 1, data, &done);
        caml_leave_blocking_section();
    } else {
        outcome = sakia_queue_submit(queue, &request, 1, data, &done);
    }
    free(room);
    if (outcome == 0) {
        outcome = -EAGAIN;
    }
    /* The ticket is too large for an integer of OCaml's. */
    memcpy(data + 1, &request.ticket, sizeof request.ticket);
    CAMLreturn(Val_long(outcome < 0 ? outcome : (int64_t)done));
}

intnat sakia_ml_queue_take(value v, value results, intnat room) {
    return sakia_queue_take(Queue_val(v), (sakia_result *)Caml_ba_data_val(results), room);
}

value sakia_ml_queue_take_byte(value v, value results, value room) {
    return Val_long(sakia_ml_queue_take(v, results, Long_val(room)));
}

value sakia_ml_queue_wait(value v, value results, value room_v, value timeout) {
    CAMLparam2(v, results);
    sakia_queue *queue = Queue_val(v);
    sakia_result *data = (sakia_result *)Caml_ba_data_val(results);
    int64_t limit = Long_val(timeout), count;
    size_t room = Long_val(room_v);
    caml_enter_blocking_section();
    count = sakia_queue_wait(queue, data, room, limit);
    caml_leave_blocking_section();
    CAMLreturn(Val_long(count));
}

value sakia_ml_queue_cancel(value v, value ticket) {
    return Val_long(sakia_queue_cancel(Queue_val(v), (uint64_t)Int64_val(ticket)));
}

value sakia_ml_queue_under_way(value v) { return Val_long(sakia_queue_under_way(Queue_val(v))); }

value sakia_ml_queue_pollable(value v) { return Val_long(sakia_queue_pollable(Queue_val(v))); }

value sakia_ml_queue_why_no_ring(value v) {
    const char *why = sakia_queue_why_no_ring(Queue_val(v));
    return caml_copy_string(why ? why : "");
}

value sakia_ml_queue_waker(value v) {
    CAMLparam1(v);
    CAMLlocal1(waker);
    int32_t error;
    waker = caml_alloc_custom_mem(&waker_operations, sizeof(sakia_waker *), 64);
    Waker_val(waker) = NULL;
    error = sakia_queue_waker(Queue_val(v), &Waker_val(waker));
    CAMLreturn(error < 0 ? Val_int(error) : waker);
}

value sakia_ml_queue_stop(value v, value limit_v, value tokens, value room_v) {
    CAMLparam2(v, tokens);
    sakia_queue *queue = Queue_val(v);
    uint64_t *data = (uint64_t *)Caml_ba_data_val(tokens);
    int64_t limit = Long_val(limit_v), count;
    size_t room = Long_val(room_v);
    caml_enter_blocking_section();
    count = sakia_queue_stop(queue, limit, data, room);
    caml_leave_blocking_section();
    CAMLreturn(Val_long(count));
}

/* ---- trees ---- */

struct tree {
    sakia_tree *tree;
    pthread_mutex_t failures; /* one thread at a time takes them */
};

#define Tree_val(v) (*(struct tree **)Data_custom_val(v))

/* A tree is rooted until its end was seen, so this does not wait. */
static void tree_finalize(value v) {
    struct tree *it = Tree_val(v);
    if (it) {
        sakia_tree_free(it->tree);
        pthread_mutex_destroy(&it->failures);
        free(it);
    }
}

static struct custom_operations tree_operations = {
    "org.sakia.tree",           tree_finalize,
    custom_compare_default,     custom_hash_default,
    custom_serialize_default,   custom_deserialize_default,
    custom_compare_ext_default, custom_fixed_length_default,
};

/* `to` is an integer for a removal. */
value sakia_ml_tree_new(value from, value to, value flags, value threads, value limit) {
    CAMLparam2(from, to);
    CAMLlocal1(v);
    sakia_tree_options options = SAKIA_TREE_OPTIONS;
    struct tree *it;
    const char *source = path_of(from), *destination = Is_block(to) ? path_of(to) : "";
    int32_t error;
    if (!source || !destination) {
        CAMLreturn(Val_int(-ENOENT));
    }
    options.flags = (uint32_t)Long_val(flags);
    options.threads = (uint32_t)Long_val(threads);
    options.limit = (uint32_t)Long_val(limit);
    v = caml_alloc_custom_mem(&tree_operations, sizeof(struct tree *), 65536);
    Tree_val(v) = NULL;
    it = calloc(1, sizeof *it);
    if (!it) {
        caml_raise_out_of_memory();
    }
    pthread_mutex_init(&it->failures, NULL);
    /* The allocation may have moved the texts. */
    error = Is_block(to) ? sakia_copy_tree(String_val(from), String_val(to), &options, &it->tree)
                         : sakia_remove_tree(String_val(from), &options, &it->tree);
    if (error < 0) {
        free(it);
        CAMLreturn(Val_int(error));
    }
    Tree_val(v) = it;
    CAMLreturn(v);
}

/* Eight numbers to a bigarray of 64-bit numbers. */
value sakia_ml_tree_counts(value v, value numbers) {
    return Val_int(sakia_tree_counts(Tree_val(v)->tree, Caml_ba_data_val(numbers), sizeof(sakia_counts)));
}

/* An error number, 0 for none, or (operation, path, error number). */
value sakia_ml_tree_failure(value v) {
    CAMLparam1(v);
    CAMLlocal3(operation, path, result);
    struct tree *it = Tree_val(v);
    sakia_failure failure;
    char *texts[2] = {NULL, NULL};
    int32_t count;
    pthread_mutex_lock(&it->failures);
    count = sakia_tree_failure(it->tree, &failure);
    if (count == 1) {
        texts[0] = strdup(failure.operation ? failure.operation : "");
        texts[1] = strdup(failure.path ? failure.path : "");
    }
    pthread_mutex_unlock(&it->failures);
    if (count != 1) {
        CAMLreturn(Val_int(count));
    }
    operation = caml_copy_string(texts[0] ? texts[0] : "");
    path = caml_copy_string(texts[1] ? texts[1] : "");
    free(texts[0]);
    free(texts[1]);
    result = caml_alloc_tuple(3);
    Store_field(result, 0, operation);
    Store_field(result, 1, path);
    Store_field(result, 2, Val_int(failure.error));
    CAMLreturn(result);
}

value sakia_ml_tree_wait(value v, value timeout) {
    CAMLparam1(v);
    struct tree *it = Tree_val(v);
    int64_t limit = Long_val(timeout);
    int32_t outcome;
    caml_enter_blocking_section();
    outcome = sakia_tree_wait(it->tree, limit);
    caml_leave_blocking_section();
    CAMLreturn(Val_int(outcome));
}

value sakia_ml_tree_pollable(value v) { return Val_int(sakia_tree_pollable(Tree_val(v)->tree)); }

value sakia_ml_tree_cancel(value v) { return Val_int(sakia_tree_cancel(Tree_val(v)->tree)); }

/* ---- addresses and messages ---- */

union address {
    struct sockaddr any;
    struct sockaddr_un local;
    struct sockaddr_in inet;
    struct sockaddr_in6 inet6;
};

/* The bytes of an address for the kernel, as a string; an integer for a path that is too long. */
value sakia_ml_address_encode(value address) {
    CAMLparam1(address);
    union address it;
    socklen_t size;
    memset(&it, 0, sizeof it);
    if (Tag_val(address) == 0) { /* ADDR_UNIX path */
        value path = Field(address, 0);
        mlsize_t len = caml_string_length(path);
        if (len >= sizeof it.local.sun_path && !(len == sizeof it.local.sun_path && Byte(path, 0) == 0)) {
            CAMLreturn(Val_int(-ENAMETOOLONG));
        }
        it.local.sun_family = AF_UNIX;
        memcpy(it.local.sun_path, String_val(path), len);
        size = offsetof(struct sockaddr_un, sun_path) + len;
        /* A name with a zero in front is abstract, and ends without one. */
        if (len > 0 && Byte(path, 0) != 0) {
            size++;
        }
    } else { /* ADDR_INET (address, port) */
        value inet = Field(address, 0);
        if (caml_string_length(inet) == 16) {
            it.inet6.sin6_family = AF_INET6;
            memcpy(&it.inet6.sin6_addr, String_val(inet), 16);
            it.inet6.sin6_port = htons(Int_val(Field(address, 1)));
            size = sizeof it.inet6;
        } else {
            it.inet.sin_family = AF_INET;
            memcpy(&it.inet.sin_addr, String_val(inet), 4);
            it.inet.sin_port = htons(Int_val(Field(address, 1)));
            size = sizeof it.inet;
        }
    }
    CAMLreturn(caml_alloc_initialized_string(size, (const char *)&it));
}

/* The address in `len` bytes of `memory`, as a Unix.sockaddr; an integer for an unknown one. */
value sakia_ml_address_decode(value memory, value pos, value len_v) {
    CAMLparam1(memory);
    CAMLlocal2(text, result);
    union address it;
    size_t len = Long_val(len_v);
    memset(&it, 0, sizeof it);
    if (len > sizeof it) {
        len = sizeof it;
    }
    memcpy(&it, (char *)Caml_ba_data_val(memory) + Long_val(pos), len);
    if (len < sizeof(sa_family_t) || it.any.sa_family == AF_UNIX) {
        size_t begin = offsetof(struct sockaddr_un, sun_path), size = len > begin ? len - begin : 0;
        if (size > 0 && it.local.sun_path[0] != 0) {
            size = strnlen(it.local.sun_path, size);
        }
        text = caml_alloc_initialized_string(size, it.local.sun_path);
        result = caml_alloc_small(1, 0);
        Field(result, 0) = text;
    } else if (it.any.sa_family == AF_INET) {
        text = caml_alloc_initialized_string(4, (const char *)&it.inet.sin_addr);
        result = caml_alloc_small(2, 1);
        Field(result, 0) = text;
        Field(result, 1) = Val_int(ntohs(it.inet.sin_port));
    } else if (it.any.sa_family == AF_INET6) {
        text = caml_alloc_initialized_string(16, (const char *)&it.inet6.sin6_addr);
        result = caml_alloc_small(2, 1);
        Field(result, 0) = text;
        Field(result, 1) = Val_int(ntohs(it.inet6.sin6_port));
    } else {
        result = Val_int(-EAFNOSUPPORT);
    }
    CAMLreturn(result);
}

/* A message to be received: the structure, and the memory that it leads to, in one bigarray. */
struct incoming {
    struct msghdr message;
    struct iovec vector;
    struct sockaddr_storage address;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MAX_CONTROL_FDS * sizeof(int))];
    } control;
};

value sakia_ml_message_size(value unit) { return Val_long(sizeof(struct incoming)); }

value sakia_ml_message_header(value unit) { return Val_long(sizeof(struct msghdr)); }

/* Prepares `area` for a message whose bytes go to `memory`. */
value sakia_ml_message_prepare(value area, value memory, value pos, value len, value descriptors) {
    struct incoming *it = (struct incoming *)Caml_ba_data_val(area);
    size_t fds = Long_val(descriptors) > MAX_CONTROL_FDS ? MAX_CONTROL_FDS : (size_t)Long_val(descriptors);
    memset(it, 0, sizeof *it);
    it->vector.iov_base = memory_of(memory, pos);
    it->vector.iov_len = Long_val(len);
    it->message.msg_iov = &it->vector;
    it->message.msg_iovlen = 1;
    it->message.msg_name = &it->address;
    it->message.msg_namelen = sizeof it->address;
    if (fds > 0) {
        it->message.msg_control = &it->control;
        it->message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
    }
    return Val_unit;
}

/* (where the address begins, its bytes, flags). */
value sakia_ml_message_facts(value area) {
    struct incoming *it = (struct incoming *)Caml_ba_data_val(area);
    socklen_t size = it->message.msg_name ? it->message.msg_namelen : 0;
    int flags = it->message.msg_flags;
    value result;
    if (size > sizeof it->address) {
        size = sizeof it->address;
    }
    result = caml_alloc_small(3, 0);
    Field(result, 0) = Val_long(offsetof(struct incoming, address));
    Field(result, 1) = Val_long(size);
    Field(result, 2) = Val_long(flags);
    return result;
}

/* The received descriptors, once: an array of integers. */
value sakia_ml_message_descriptors(value area) {
    CAMLparam1(area);
    CAMLlocal1(result);
    struct incoming *it = (struct incoming *)Caml_ba_data_val(area);
    int fds[MAX_CONTROL_FDS];
    size_t count = 0;
    struct cmsghdr *header;
    if (it->message.msg_control == &it->control && it->message.msg_controllen <= sizeof it->control) {
        for (header = CMSG_FIRSTHDR(&it->message); header; header = CMSG_NXTHDR(&it->message, header)) {
            size_t bytes = header->cmsg_len - CMSG_LEN(0);
            if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
                for (size_t i = 0; i < bytes / sizeof(int) && count < MAX_CONTROL_FDS; i++) {
                    memcpy(&fds[count++], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
                }
            }
        }
    }
    it->message.msg_control = NULL;
    it->message.msg_controllen = 0;
    result = count == 0 ? Atom(0) : caml_alloc(count, 0);
    for (size_t i = 0; i < count; i++) {
        Store_field(result, i, Val_int(fds[i]));
    }
    CAMLreturn(result);
}

/* Two struct timespec from four integers: seconds and nanoseconds of access, and of change. */
value sakia_ml_times(value access, value access_ns, value change, value change_ns) {
    struct timespec times[2] = {
        {.tv_sec = Long_val(access), .tv_nsec = Long_val(access_ns)},
        {.tv_sec = Long_val(change), .tv_nsec = Long_val(change_ns)},
    };
    return caml_alloc_initialized_string(sizeof times, (const char *)times);
}

/* ---- numbers that differ between machines ---- */

#ifndef O_TMPFILE
#define O_TMPFILE 0
#endif

value sakia_ml_constants(value unit) {
    static const int64_t numbers[] = {
        O_RDONLY,
        O_WRONLY,
        O_RDWR,
        O_CREAT,
        O_EXCL,
        O_TRUNC,
        O_APPEND,
        O_NONBLOCK,
        O_SYNC,
        O_DSYNC,
        O_CLOEXEC,
        O_DIRECT,
        O_DIRECTORY,
        O_NOFOLLOW,
        O_PATH,
        O_NOATIME,
        O_TMPFILE,
        O_NOCTTY,
        AT_REMOVEDIR,
        AT_SYMLINK_NOFOLLOW,
        AT_SYMLINK_FOLLOW,
        AT_EMPTY_PATH,
        POLLIN,
        POLLOUT,
        POLLERR,
        POLLHUP,
        POLLPRI,
        POLLRDHUP,
        MSG_PEEK,
        MSG_MORE,
        MSG_NOSIGNAL,
        MSG_DONTWAIT,
        MSG_OOB,
        MSG_TRUNC,
        MSG_CTRUNC,
        MSG_WAITALL,
        MSG_CMSG_CLOEXEC,
        RENAME_NOREPLACE,
        RENAME_EXCHANGE,
        AF_UNIX,
        AF_INET,
        AF_INET6,
        SOCK_STREAM,
        SOCK_DGRAM,
        SOCK_SEQPACKET,
        SOCK_NONBLOCK,
        SHUT_RD,
        SHUT_WR,
        SHUT_RDWR,
        UTIME_NOW,
        UTIME_OMIT,
        EAGAIN,
        ECANCELED,
        EPERM,
        EBADF,
        EINVAL,
        ENOSYS,
        EXDEV,
        EINTR,
        ENOENT,
        EBUSY,
    };
    value result = caml_alloc(sizeof numbers / sizeof numbers[0], 0);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        Store_field(result, i, Val_long(numbers[i]));
    }
    return result;
}

/* ---- copies ---- */

value sakia_ml_blit_to(value memory, intnat pos, value bytes, intnat bytes_pos, intnat len) {
    memcpy(Bytes_val(bytes) + bytes_pos, (char *)Caml_ba_data_val(memory) + pos, len);
    return Val_unit;
}

value sakia_ml_blit_to_byte(value memory, value pos, value bytes, value bytes_pos, value len) {
    return sakia_ml_blit_to(memory, Long_val(pos), bytes, Long_val(bytes_pos), Long_val(len));
}

value sakia_ml_blit_of(value bytes, intnat bytes_pos, value memory, intnat pos, intnat len) {
    memcpy((char *)Caml_ba_data_val(memory) + pos, Bytes_val(bytes) + bytes_pos, len);
    return Val_unit;
}

value sakia_ml_blit_of_byte(value bytes, value bytes_pos, value memory, value pos, value len) {
    return sakia_ml_blit_of(bytes, Long_val(bytes_pos), memory, Long_val(pos), Long_val(len));
}
