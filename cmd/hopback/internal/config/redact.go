package config

import (
	"net/url"
	"regexp"
	"strings"
)

// Everything between the slashes and the last @ of a word may be credentials.
var userinfo = regexp.MustCompile(`//[^\s"]*@`)

// Redact takes the credentials out of every URL in a text, so that it can be
// shown or logged. It would rather take too much: a password that was not
// percent-encoded can hold any character.
func Redact(s string) string { return userinfo.ReplaceAllString(s, "//***@") }

// redactURL is Redact for a value that is meant to be a URL and may be none.
// What cannot be read for certain is not shown at all.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || strings.Contains(u.EscapedPath()+u.RawQuery+u.Fragment, "@") {
		return "***"
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), "***")
	}
	u.RawQuery, u.Fragment = "", ""
	return strings.Replace(u.String(), "%2A%2A%2A", "***", 1)
}
