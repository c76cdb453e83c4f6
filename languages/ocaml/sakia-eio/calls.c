/* Calls without a loop: they do not wait, but for that of random bytes. */
#define _GNU_SOURCE
#include "common.h"

#include <caml/custom.h>
#include <caml/fail.h>
#include <caml/memory.h>
#include <caml/signals.h>
#include <caml/socketaddr.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "eio_unix_stubs.h"
#include "fork_action.h"

#define File(v) (*(sakia_file **) Data_custom_val(v))

static void file_finalize(value v) {
    sakia_file_unref(File(v));
}

static struct custom_operations file_operations = {
    .identifier = "sakia.eio.file",
    .finalize = file_finalize,
};

static intnat result_of(ssize_t result) {
    return result < 0 ? -errno : result;
}

/* A handle for calls that are tried: what the library learns of a file hangs on it. No loop sees it, so the
 * number may be closed before it goes. */
CAMLprim value eio_sakia_lend(value fd) {
    CAMLparam1(fd);
    CAMLlocal1(result);
    sakia_file *file;
    int error = sakia_file_lend(Int_val(fd), &file);

    if (error < 0)
        fail_with(error, "sakia_file_lend");
    result = caml_alloc_custom(&file_operations, sizeof(sakia_file *), 0, 1);
    File(result) = file;
    CAMLreturn(result);
}

static intnat try_move(sakia_file *file, bool writes, void *at, intnat len, intnat offset) {
    uint64_t where = offset < 0 ? SAKIA_CURRENT_POSITION : (uint64_t) offset;
    return writes ? sakia_try_write(file, at, (size_t) len, where)
                  : sakia_try_read(file, at, (size_t) len, where);
}

/* Reads or writes up to 32 KiB if that needs no wait, else answers EAGAIN. */
intnat eio_sakia_try_move(value file, intnat writes, value buffer, intnat from, intnat len, intnat offset) {
    return try_move(File(file), writes, (char *) Caml_ba_data_val(buffer) + from, len, offset);
}

CAMLprim value eio_sakia_try_move_byte(value *v, int count) {
    (void) count;
    return Val_long(
        eio_sakia_try_move(v[0], Long_val(v[1]), v[2], Long_val(v[3]), Long_val(v[4]), Long_val(v[5])));
}

/* The same for up to 256 KiB, with the runtime lock released. */
CAMLprim value eio_sakia_try_move_much(value file, value writes, value buffer, value from, value len,
                                       value offset) {
    CAMLparam2(file, buffer);
    char *at = (char *) Caml_ba_data_val(buffer) + Long_val(from);
    sakia_file *it = File(file);

    caml_enter_blocking_section_no_pending();
    intnat result = try_move(it, Long_val(writes), at, Long_val(len), Long_val(offset));
    caml_leave_blocking_section();
    CAMLreturn(Val_long(result));
}

CAMLprim value eio_sakia_try_move_much_byte(value *v, int count) {
    (void) count;
    return eio_sakia_try_move_much(v[0], v[1], v[2], v[3], v[4], v[5]);
}

intnat eio_sakia_try_receive(intnat fd, value buffer, intnat from, intnat len) {
    return result_of(recv((int) fd, (char *) Caml_ba_data_val(buffer) + from, (size_t) len, MSG_DONTWAIT));
}

CAMLprim value eio_sakia_try_receive_byte(value fd, value buffer, value from, value len) {
    return Val_long(eio_sakia_try_receive(Long_val(fd), buffer, Long_val(from), Long_val(len)));
}

/* Sends the parts as one message, with descriptors. Returns the bytes, or a negative error number. */
CAMLprim value eio_sakia_try_send_message(value fd, value fds, value destination, value list) {
    CAMLparam3(fds, destination, list);
    struct iovec parts[PARTS];
    size_t bytes;
    struct msghdr message = {0};
    union sock_addr_union to;
    socklen_param_type to_len;
    size_t count = 0;
    char *control = NULL;

    for (value rest = fds; Is_block(rest); rest = Field(rest, 1))
        count++;
    if (Is_block(destination)) {
        caml_unix_get_sockaddr(Field(destination, 0), &to, &to_len);
        message.msg_name = &to;
        message.msg_namelen = to_len;
    }
    message.msg_iov = parts;
    message.msg_iovlen = parts_of(list, parts, &bytes);
    if (count > 0) {
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        message.msg_control = control = calloc(1, message.msg_controllen);
        if (control == NULL)
            caml_raise_out_of_memory();
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        int *number = (int *) CMSG_DATA(header);
        for (value rest = fds; Is_block(rest); rest = Field(rest, 1))
            *number++ = Int_val(Field(rest, 0));
    }
    intnat result = result_of(sendmsg(Int_val(fd), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
    free(control);
    CAMLreturn(Val_long(result));
}

static value with_numbers(const int *numbers, size_t count) {
    CAMLparam0();
    CAMLlocal2(list, cell);

    list = Val_emptylist;
    while (count > 0) {
        cell = caml_alloc_small(2, 0);
        Field(cell, 0) = Val_int(numbers[--count]);
        Field(cell, 1) = list;
        list = cell;
    }
    CAMLreturn(list);
}

/* Receives a message: its bytes or a negative error number, the sender's address if it has one, and
 * descriptors. */
CAMLprim value eio_sakia_try_receive_message(value fd, value v_max, value list) {
    CAMLparam1(list);
    CAMLlocal4(result, address, some, numbers);
    struct iovec parts[PARTS];
    size_t bytes, max = (size_t) Long_val(v_max), count = 0;
    union sock_addr_union from;
    struct msghdr message = {0};
    int *received = NULL;

    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = parts;
    message.msg_iovlen = parts_of(list, parts, &bytes);
    if (max > 0) {
        message.msg_controllen = CMSG_SPACE(max * sizeof(int));
        message.msg_control = calloc(1, message.msg_controllen);
        received = calloc(max + 1, sizeof *received);
        if (message.msg_control == NULL || received == NULL) {
            free(message.msg_control);
            free(received);
            caml_raise_out_of_memory();
        }
    }
    intnat value_ = result_of(recvmsg(Int_val(fd), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    if (value_ >= 0 && max > 0) {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        for (; header != NULL; header = CMSG_NXTHDR(&message, header)) {
            if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
                continue;
            size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < here; i++) {
                int number;
                memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof number);
                /* Padding may let one more in than was asked for. */
                if (count < max)
                    received[count++] = number;
                else
                    close(number);
            }
        }
    }
    numbers = with_numbers(received, count);
    free(message.msg_control);
    free(received);
    some = Val_none;
    if (value_ >= 0 && message.msg_namelen > 0) {
        address = caml_unix_alloc_sockaddr(&from, message.msg_namelen, -1);
        some = caml_alloc_some(address);
    }
    result = caml_alloc_small(3, 0);
    Field(result, 0) = Val_long(value_);
    Field(result, 1) = some;
    Field(result, 2) = numbers;
    CAMLreturn(result);
}

/* The kind of an open number, S_IFMT >> 12, and 16 times its size; 0 if it is not open. */
intnat eio_sakia_facts(intnat fd) {
    struct stat stat;
    return fstat((int) fd, &stat) < 0 ? 0 : stat.st_size * 16 + ((stat.st_mode & S_IFMT) >> 12);
}

CAMLprim value eio_sakia_facts_byte(value fd) {
    return Val_long(eio_sakia_facts(Long_val(fd)));
}

intnat eio_sakia_now(value unit) {
    struct timespec now;
    (void) unit;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

CAMLprim value eio_sakia_now_byte(value unit) {
    return Val_long(eio_sakia_now(unit));
}

CAMLprim value eio_sakia_error(value code) {
    return caml_unix_error_of_code(Int_val(code));
}

/* The entries of `len` bytes of `getdents64(2)`, the last one first, without "." and "..". */
CAMLprim value eio_sakia_entries(value buffer, value v_len) {
    CAMLparam1(buffer);
    CAMLlocal4(list, cell, entry, name);
    intnat len = Long_val(v_len), at = 0;

    list = Val_emptylist;
    while (at < len) {
        struct dirent64 *it = (struct dirent64 *) ((char *) Caml_ba_data_val(buffer) + at);
        unsigned char type = it->d_type;
        at += it->d_reclen;
        if (it->d_name[0] == '.' && (it->d_name[1] == 0 || (it->d_name[1] == '.' && it->d_name[2] == 0)))
            continue;
        name = caml_copy_string(it->d_name);
        entry = caml_alloc_small(2, 0);
        Field(entry, 0) = eio_unix_file_type_of_dtype(type);
        Field(entry, 1) = name;
        cell = caml_alloc_small(2, 0);
        Field(cell, 0) = entry;
        Field(cell, 1) = list;
        list = cell;
    }
    CAMLreturn(list);
}

/* Fills memory with random bytes. Only before the kernel's first seed it waits. */
CAMLprim value eio_sakia_random(value buffer, value v_from, value v_len) {
    CAMLparam1(buffer);
    char *to = (char *) Caml_ba_data_val(buffer) + Long_val(v_from);
    size_t left = (size_t) Long_val(v_len);

    while (left > 0) {
        caml_enter_blocking_section();
        ssize_t count = getrandom(to, left, 0);
        int error = errno;
        caml_leave_blocking_section();
        if (count < 0 && error != EINTR)
            caml_unix_error(error, "getrandom", Nothing);
        if (count > 0) {
            to += count;
            left -= (size_t) count;
        }
    }
    CAMLreturn(Val_unit);
}

/* ---- Processes ---- */

/* Forks a child that performs the actions, and returns its number. */
CAMLprim value eio_sakia_spawn(value errors, value actions) {
    CAMLparam1(actions);
    pid_t pid = fork();

    if (pid == 0)
        eio_unix_run_fork_actions(Int_val(errors), actions);
    if (pid < 0)
        caml_uerror("fork", Nothing);
    CAMLreturn(Val_long(pid));
}

/* A descriptor of a child that was not waited for; -1 where the kernel has none (Linux 5.3). */
CAMLprim value eio_sakia_pidfd(value pid) {
    int fd = (int) syscall(SYS_pidfd_open, (pid_t) Long_val(pid), 0);
    return Val_int(fd);
}
