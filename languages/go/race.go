//go:build race

package sakia

import (
	"runtime"
	"unsafe"
)

// As the syscall package does for its own calls: a write to a file happens before a read of it.
var ioSync int64

func raceReleased() { runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) }

// raceRead notes that the kernel has read the bytes.
func raceRead(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}

// raceWrote notes that the kernel has written the bytes.
func raceWrote(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
	runtime.RaceAcquire(unsafe.Pointer(&ioSync))
}
