// A client that uses only net/http: one transport, kept-alive connections, several
// goroutines. It compares every body with the object on disk and prints the number of connections.
//
//	client -base https://one.objects.lab -ca ca.crt -objects DIR -requests 50 -parallel 2 NAME…
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

var (
	base     = flag.String("base", "", "scheme and host")
	ca       = flag.String("ca", "", "PEM file of the authority")
	objects  = flag.String("objects", "", "directory of the objects")
	requests = flag.Int("requests", 50, "requests of each goroutine")
	parallel = flag.Int("parallel", 2, "goroutines")
	own      = flag.String("own", "go", "prefix of names to store")
)

func main() {
	flag.Parse()
	roots := x509.NewCertPool()
	if *ca != "" {
		pem, err := os.ReadFile(*ca)
		if err != nil || !roots.AppendCertsFromPEM(pem) {
			log.Fatalf("reading %s: %v", *ca, err)
		}
	}
	client := &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: roots},
			MaxIdleConnsPerHost: *parallel,
			DisableCompression:  true,
		},
	}
	var connections atomic.Int64
	var group sync.WaitGroup
	failures := make(chan error, *parallel)
	for worker := range *parallel {
		group.Add(1)
		go func() {
			defer group.Done()
			failures <- run(client, worker, &connections)
		}()
	}
	group.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("connections %d requests %d\n", connections.Load(), *parallel**requests)
}

func run(client *http.Client, worker int, connections *atomic.Int64) error {
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			connections.Add(1)
		}
	}}
	for number := range *requests {
		name := flag.Arg((number + worker) % flag.NArg())
		content, err := os.ReadFile(filepath.Join(*objects, name))
		if err != nil {
			return err
		}
		method, url, want, body := "GET", *base+"/"+name, content, []byte(nil)
		status := http.StatusOK
		first := len(content) / 3
		switch number % 10 {
		case 3:
			method, want = "HEAD", nil
		case 5:
			if len(content) > 1 {
				want, status = content[first:], http.StatusPartialContent
			}
		case 7:
			// Unique names: servers that share a directory see changes of others late.
			method, url = "PUT", fmt.Sprintf("%s/%s-%d-%d", *base, *own, worker, number)
			want, status, body = nil, http.StatusCreated, content
		case 8:
			// The object of the previous request of this goroutine, which is stored.
			previous := flag.Arg((number - 1 + worker) % flag.NArg())
			url = fmt.Sprintf("%s/%s-%d-%d", *base, *own, worker, number-1)
			if want, err = os.ReadFile(filepath.Join(*objects, previous)); err != nil {
				return err
			}
		}
		request, err := http.NewRequest(method, url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		if status == http.StatusPartialContent {
			request.Header.Set("Range", fmt.Sprintf("bytes=%d-", first))
		}
		response, err := client.Do(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
		if err != nil {
			return fmt.Errorf("request %d, %s %s: %w", number, method, url, err)
		}
		got, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return fmt.Errorf("request %d, %s %s: body: %w", number, method, url, err)
		}
		if response.StatusCode != status || !bytes.Equal(got, want) {
			return fmt.Errorf("request %d, %s %s: %s with %d bytes, not %d with %d",
				number, method, url, response.Status, len(got), status, len(want))
		}
	}
	return nil
}
