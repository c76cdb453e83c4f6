package held

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

const (
	loopGetFree   = 0x4c82
	loopConfigure = 0x4c0a
	loopClear     = 0x4c01
	// Of `struct loop_config`.
	configBytes = 304
	flagsAt     = 60
	autoClear   = 4

	image    = "disk"
	patience = 10 * time.Second
)

// A Disk is a mounted ext4, whose disk is a file of a server.
type Disk struct {
	// Where it is mounted.
	Dir    string
	Server *Server
	device *os.File
}

// NewDisk makes and mounts a disk of so many bytes, below a directory of the test's own.
func NewDisk(scratch string, size int64) (*Disk, error) {
	path := filepath.Join(scratch, "image")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(path, size); err != nil {
		return nil, err
	}
	// All is written now, so no thread of the kernel does it later.
	words := []string{"-q", "-F", "-b", "4096", "-m", "0", "-E",
		"lazy_itable_init=0,lazy_journal_init=0,nodiscard", path}
	if out, err := exec.Command("mkfs.ext4", words...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	os.Remove(path)
	d := &Disk{Dir: filepath.Join(scratch, "mounted")}
	served := filepath.Join(scratch, "served")
	for _, dir := range []string{d.Dir, served} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if d.Server, err = Serve(served, scratch, map[string][]byte{image: data}); err != nil {
		return nil, err
	}
	if d.device, err = attach(filepath.Join(served, image)); err != nil {
		d.Server.Close()
		return nil, err
	}
	// No periodic commits.
	if err := syscall.Mount(d.device.Name(), d.Dir, "ext4", 0, "errors=continue,commit=3600"); err != nil {
		d.device.Close()
		d.Server.Close()
		return nil, &os.PathError{Op: "mount", Path: d.Dir, Err: err}
	}
	return d, nil
}

// attach gives a file to a free loop device, which is freed with its last use.
func attach(path string) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	backing, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	for {
		number, errno := ioctl(control, loopGetFree, 0)
		if errno != 0 {
			return nil, &os.PathError{Op: "LOOP_CTL_GET_FREE", Path: control.Name(), Err: errno}
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := make([]byte, configBytes)
		binary.NativeEndian.PutUint32(config, uint32(backing.Fd()))
		binary.NativeEndian.PutUint32(config[flagsAt:], autoClear)
		_, errno = ioctl(device, loopConfigure, uintptr(unsafe.Pointer(unsafe.SliceData(config))))
		runtime.KeepAlive(config)
		if errno == 0 {
			return device, nil
		}
		device.Close()
		if errno != syscall.EBUSY { // another process was quicker
			return nil, &os.PathError{Op: "LOOP_CONFIGURE", Path: device.Name(), Err: errno}
		}
	}
}

func ioctl(file *os.File, call, argument uintptr) (uintptr, syscall.Errno) {
	result, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), call, argument)
	return result, errno
}

// Chill drops the cached pages of a file, whose contents are on the disk, so that reads reach the disk.
func Chill(file *os.File) error {
	if err := file.Sync(); err != nil {
		return err
	}
	const dontNeed = 4
	_, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, file.Fd(), 0, 0, dontNeed, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Close releases what is held, unmounts and detaches.
func (d *Disk) Close() error {
	d.Server.Release()
	var err error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(10 * time.Millisecond) {
		if err = syscall.Unmount(d.Dir, 0); err != syscall.EBUSY {
			break
		}
	}
	if err != nil {
		syscall.Unmount(d.Dir, syscall.MNT_DETACH)
	}
	ioctl(d.device, loopClear, 0)
	d.device.Close()
	// The kernel's last use of the file, before the server ends.
	name := filepath.Join("/sys/block", filepath.Base(d.device.Name()), "loop")
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(name); err != nil {
			break
		}
	}
	if closeErr := d.Server.Close(); err == nil {
		err = closeErr
	}
	return err
}
