package sakia

import (
	"fmt"
	"io/fs"
)

// TreeOptions says how a tree is copied. The zero value copies contents and permissions, as cp -r.
type TreeOptions struct {
	// An exact copy, with owners, times, links and attributes, as cp -a.
	Archive bool
	// Entries in the way that cannot be opened are removed and made anew.
	Force bool
	// Symbolic links are followed.
	Follow bool
	// Other file systems are left out.
	OneFileSystem bool
	// The copy is durable at its end.
	Durable bool
	// The copy is read again, and compared.
	Verify bool
	// Nothing is written.
	DryRun bool
	// Entries that exist stay.
	Keep bool
	// Entries that exist and are not older stay.
	Update bool
	// Threads that work; 0 for one per processor.
	Threads int
	// The most entries in progress; 0 for 64.
	Limit int
}

// TreeCounts has the entries of a tree that were handled, by kind.
type TreeCounts struct {
	Files, Directories, Symlinks, HardLinks, Others, Skipped, Bytes, Failures uint64
}

// A TreeError says that a tree was not handled as a whole.
type TreeError struct {
	// "copy" or "remove", and its paths.
	Op, From, To string
	// The first failures of entries, at most 1000.
	Failures []*fs.PathError
	// Why it ended.
	Err error
}

const failuresKept = 1000

func (e *TreeError) Error() string {
	text := e.Op + " " + e.From
	if e.To != "" {
		text += " to " + e.To
	}
	if len(e.Failures) > 0 {
		return fmt.Sprintf("%s: %v (%d failures)", text, e.Failures[0], len(e.Failures))
	}
	return text + ": " + e.Err.Error()
}

// Unwrap returns the reason and the failures.
func (e *TreeError) Unwrap() []error {
	all := []error{e.Err}
	for _, failure := range e.Failures {
		all = append(all, failure)
	}
	return all
}
