//go:build cgo && linux && sakia_static

package sakia

// #cgo pkg-config: --static sakia
// #cgo LDFLAGS: -l:libsakia.a -Wl,--as-needed
import "C"
