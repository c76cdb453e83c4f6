//go:build cgo && linux && !sakia_static

package sakia

// #cgo pkg-config: sakia
import "C"
