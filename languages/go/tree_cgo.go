//go:build cgo && linux

package sakia

/*
#include <sakia.h>
#include <stdlib.h>

static sakia_tree_options tree_options(void) {
    sakia_tree_options options = SAKIA_TREE_OPTIONS;
    return options;
}
*/
import "C"

import (
	"context"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

// CopyTree copies a tree on threads of libsakia. The destination is the copy itself, not a directory for it.
// Failures of entries do not end the copy; they are in a [*TreeError]. When the context is done, entries in
// progress are completed or removed, and it returns.
func CopyTree(ctx context.Context, from, to string, options TreeOptions) (TreeCounts, error) {
	return workTree(ctx, "copy", from, to, func(from, to *C.char, tree **C.sakia_tree) C.int32_t {
		c := C.tree_options()
		for flag, isSet := range map[C.uint32_t]bool{
			C.SAKIA_TREE_ARCHIVE:         options.Archive,
			C.SAKIA_TREE_FORCE:           options.Force,
			C.SAKIA_TREE_FOLLOW:          options.Follow,
			C.SAKIA_TREE_ONE_FILE_SYSTEM: options.OneFileSystem,
			C.SAKIA_TREE_DURABLE:         options.Durable,
			C.SAKIA_TREE_VERIFY:          options.Verify,
			C.SAKIA_TREE_DRY_RUN:         options.DryRun,
			C.SAKIA_TREE_KEEP:            options.Keep,
			C.SAKIA_TREE_UPDATE:          options.Update,
		} {
			if isSet {
				c.flags |= flag
			}
		}
		c.threads = C.uint32_t(max(options.Threads, 0))
		c.limit = C.uint32_t(max(options.Limit, 0))
		return C.sakia_copy_tree(from, to, &c, tree)
	})
}

// RemoveTree removes a tree on threads of libsakia, as [CopyTree] copies one. Links are not followed.
func RemoveTree(ctx context.Context, path string) (TreeCounts, error) {
	return workTree(ctx, "remove", path, "", func(path, _ *C.char, tree **C.sakia_tree) C.int32_t {
		return C.sakia_remove_tree(path, nil, tree)
	})
}

func workTree(ctx context.Context, op, from, to string,
	start func(from, to *C.char, tree **C.sakia_tree) C.int32_t) (counts TreeCounts, err error) {
	failed := &TreeError{Op: op, From: from, To: to}
	if failed.Err = ctx.Err(); failed.Err != nil {
		return counts, failed
	}
	if strings.ContainsRune(from, 0) || strings.ContainsRune(to, 0) {
		failed.Err = syscall.EINVAL
		return counts, failed
	}
	source, target := C.CString(from), C.CString(to)
	defer C.free(unsafe.Pointer(source))
	defer C.free(unsafe.Pointer(target))
	var tree *C.sakia_tree
	if errno := start(source, target, &tree); errno < 0 {
		failed.Err = syscall.Errno(-errno)
		return counts, failed
	}
	defer C.sakia_tree_free(tree)
	waitTree(ctx, tree)
	result := C.sakia_tree_wait(tree, -1)
	for {
		var failure C.sakia_failure
		if C.sakia_tree_failure(tree, &failure) != 1 {
			break
		}
		if len(failed.Failures) < failuresKept {
			failed.Failures = append(failed.Failures, &fs.PathError{
				Op:   C.GoString(failure.operation),
				Path: C.GoString(failure.path),
				Err:  syscall.Errno(failure.error),
			})
		}
	}
	var c C.sakia_counts
	if C.sakia_tree_counts(tree, &c, C.sizeof_sakia_counts) == 0 {
		counts = TreeCounts{uint64(c.files), uint64(c.directories), uint64(c.symlinks), uint64(c.hard_links),
			uint64(c.others), uint64(c.skipped), uint64(c.bytes), uint64(c.failures)}
	}
	if result >= 0 {
		return counts, nil
	}
	failed.Err = syscall.Errno(-result)
	if err := ctx.Err(); err != nil && failed.Err == syscall.ECANCELED {
		failed.Err = err
	}
	return counts, failed
}

// waitTree waits in the runtime's poller until the work has ended, and cancels it with the context.
func waitTree(ctx context.Context, tree *C.sakia_tree) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		C.sakia_tree_cancel(tree)
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	fd := C.sakia_tree_pollable(tree)
	if fd < 0 {
		return // no descriptor is left: the thread waits
	}
	syscall.SetNonblock(int(fd), true)
	event := os.NewFile(uintptr(fd), "sakia-tree")
	defer event.Close()
	if conn, err := event.SyscallConn(); err == nil {
		conn.Read(func(uintptr) bool { return C.sakia_tree_wait(tree, 0) != 0 })
	}
	runtime.KeepAlive(event)
}
