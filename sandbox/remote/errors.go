package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/specbox/specbox/wire"
)

// A fault is an error that stands for the answer to a request.
type fault struct {
	text   string
	status int    // of the response, if there was one
	cause  error  // of a connection that went wrong
	reply  []byte // error object that the server gave instead of an answer
}

func (f *fault) Error() string { return f.text }

// fault says what is wrong with a connection, without the URL's secrets.
func (i *instance) fault(err error) error {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // its text has the whole URL
	}
	return &fault{text: i.spec.Redact(i.where + ": " + describe(err)), cause: err}
}

func describe(err error) string {
	var (
		dns  *net.DNSError
		cert *tls.CertificateVerificationError
		rec  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("its host %q is not found: %s; check the url and this machine's network", dns.Name, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused: nobody listens there; check the url and whether the server runs"
	case errors.As(err, &cert):
		return fmt.Sprintf("its certificate is not trusted: %v; check the url, or add its authority to this machine's (SSL_CERT_FILE)", cert.Err)
	case errors.As(err, &rec), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return "it does not speak TLS: does its url begin with http://?"
	case errors.Is(err, context.Canceled):
		return "the connection was closed"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection broke off before the answer"
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Sprintf("it does not answer: %v", err)
	}
	return err.Error()
}

// refused says what a response of an error status means. It reads the body.
func (i *instance) refused(res *http.Response) *fault {
	const most = 64 << 10
	body, _ := io.ReadAll(io.LimitReader(res.Body, most)) // what there is may say why
	f := &fault{status: res.StatusCode}
	if m, err := wire.Parse(bytes.TrimSpace(body)); err == nil && m.Error != nil && wire.Valid(body) {
		f.reply = m.Error
	}
	advice, said := "", ""
	switch res.StatusCode {
	case http.StatusUnauthorized:
		advice = "; it wants credentials: set them under headers, for instance Authorization"
	case http.StatusForbidden:
		advice = "; it does not accept the credentials under headers"
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		advice = "; is this the url of its MCP endpoint?"
	case http.StatusTooManyRequests:
		advice = "; it is asked too often: try again later"
	}
	switch kind := mediaType(res.Header); {
	case f.reply != nil:
		said = wire.Str(f.reply, "message")
	case kind == "text/html":
		said = "a web page"
	case kind == "text/plain", kind == "application/json":
		said = string(bytes.TrimSpace(body[:min(len(body), 200)]))
	}
	if said != "" {
		said = ": " + i.spec.Redact(strings.ToValidUTF8(said, ""))
	}
	f.text = fmt.Sprintf("%s: it answered %s%s%s", i.where, res.Status, said, advice)
	return f
}

// strange says what a response of status 200 is that holds no message.
func (i *instance) strange(res *http.Response, body []byte) *fault {
	kind := mediaType(res.Header)
	what := fmt.Sprintf("it answered with %s, which is no MCP", kind)
	switch {
	case kind == "text/html":
		what = "it answered with a web page, not with MCP"
	case kind == "":
		what = "its answer has no Content-Type"
	case kind == "application/json":
		what = fmt.Sprintf("its answer is no JSON-RPC message: %.100q", body)
	}
	return &fault{text: i.where + ": " + i.spec.Redact(what) + "; is this the url of its MCP endpoint?", status: res.StatusCode}
}

func mediaType(h http.Header) string {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}
