// A server of the standard library: the files of a directory. It logs each request with the client's address.
package main

import (
	"log"
	"net/http"
	"os"
)

func main() {
	file, err := os.Create(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	clients := log.New(file, "", 0)
	files := http.FileServer(http.Dir(os.Args[2]))
	log.Fatal(http.ListenAndServe(os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clients.Printf("%s %s %s", r.Header.Get("X-Forwarded-For"), r.Method, r.URL.Path)
		files.ServeHTTP(w, r)
	})))
}
