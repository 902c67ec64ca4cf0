// Package specbox makes tool sandboxes ready before an agent asks for them.
package specbox
